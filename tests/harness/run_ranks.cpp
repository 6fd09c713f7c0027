#include "harness/run_ranks.h"

#include <exception>
#include <future>
#include <thread>

#include "dtrain/base/error.h"

namespace dtrain::test {

void run_ranks(int n, const std::function<void(int rank)>& fn) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

comm::ControlOptions TestWorld::control_options(int rank) const {
  comm::ControlOptions options;
  options.world = {rank, size, rank, size, hosts.empty() ? host : hosts[static_cast<std::size_t>(rank)]};
  options.generation = generation;
  options.secret = secret;
  options.security = security;
  options.timeout = timeout;
  options.heartbeat = heartbeat;
  options.session = session;
  options.log = make_null_logger();
  return options;
}

comm::CommunicatorOptions TestWorld::communicator_options() const {
  return {timeout, std::chrono::milliseconds(30'000), make_null_logger()};
}

void run_control_ranks(const TestWorld& world, const std::function<void(comm::ControlPlane&)>& fn) {
  std::promise<comm::ControlEndpoint> bound;
  const auto endpoint = bound.get_future().share();
  run_ranks(world.size, [&](int rank) {
    std::unique_ptr<comm::ControlPlane> control;
    if (rank == 0) {
      comm::ControlEndpoint where;
      control = comm::ControlPlane::serve(world.control_options(0), {}, &where);
      bound.set_value(where);
    } else {
      control = comm::ControlPlane::connect(world.control_options(rank), endpoint.get());
    }
    try {
      fn(*control);
    } catch (const std::exception& error) {
      control->fail({rank, -1, error.what()});
      throw;
    }
    if (!control->failure()) control->finish();
  });
}

void run_communicator_ranks(const TestWorld& world, const std::string& backend,
                            const std::function<void(comm::Communicator&)>& fn) {
  if (backend == "shm") {
    return run_control_ranks(world, [&](comm::ControlPlane& control) {
      const auto communicator = comm::make_shm_communicator(control, world.communicator_options());
      fn(*communicator);
    });
  }
  if (backend != "thread") throw CommError("no backend '" + backend + "' for tests");
  auto ranks = make_thread_communicators(world.size, world.communicator_options());
  run_ranks(world.size, [&](int rank) {
    comm::Communicator& mine = *ranks[static_cast<std::size_t>(rank)];
    try {
      fn(mine);
    } catch (const std::exception& error) {
      mine.abort(error.what());
      throw;
    }
  });
}

}  // namespace dtrain::test
