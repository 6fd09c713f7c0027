// A rank of the tests over mpirun: mpi_rank_program BACKEND conformance | BACKEND misuse NAME
// BACKEND is mpi, hierarchical, or alternating: hierarchical, the even ranks as if on another host than the odd ones.
// Prints one line a rank for the test, "RANK <r> <text>": "ok", or the text of its CommError. "AT <r> <ns>" before it
// is when, on the monotonic clock, a rank died or received a failure.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/mpi.h"
#include "dtrain/host/network.h"
#include "harness/conformance.h"

namespace dtrain::comm {
namespace {

using std::chrono::milliseconds;

void say(int rank, const std::string& text) {
  const std::string line = "RANK " + std::to_string(rank) + " " + text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("write");
}

void say_when(int rank) {
  const std::string line =
      "AT " + std::to_string(rank) + " " + std::to_string(SystemClock().monotonic().count()) + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("write");
}

// What a case does on the ranks; the last one is the one that misbehaves.
struct Ranks {
  ControlPlane& control;
  Communicator& comm;
  std::function<std::unique_ptr<Communicator>()> another;  // communicator of the same ranks
  bool is_last() const { return comm.rank() == comm.world_size() - 1; }
};

using Issue = std::function<Work(Communicator&, float*)>;

std::function<void(Ranks&)> differing(const Issue& most, const Issue& last) {
  return [=](Ranks& ranks) {
    std::vector<float> data(200'000);
    ranks.comm.barrier().wait();  // operation 0
    (ranks.is_last() ? last : most)(ranks.comm, data.data()).wait();
  };
}

void without_last(Ranks& ranks, const std::function<void()>& instead) {
  std::vector<float> data(5000);
  ranks.comm.barrier().wait();
  if (ranks.is_last()) return instead();
  for (int i = 0;; ++i) {
    ranks.control.set_step(i);
    ranks.comm.all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7}).wait();
  }
}

void abort_elsewhere(Ranks& ranks) {
  ranks.comm.barrier().wait();
  std::thread other;
  if (ranks.comm.rank() == 0) {
    other = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(50));
      ranks.comm.abort("the disk is full");
      ranks.comm.abort("a later cause");
    });
  }
  struct Join {
    std::thread& thread;
    ~Join() {
      if (thread.joinable()) thread.join();
    }
  } join{other};
  if (ranks.is_last()) std::this_thread::sleep_for(milliseconds(300));
  ranks.comm.barrier().wait();
}

void later_calls(Ranks& ranks) {
  std::vector<float> data(9000);
  Work second;
  try {
    Work first = ranks.comm.all_reduce(data.data(), ranks.comm.rank() == 0 ? 8000 : 9000, DataType::kFloat32);
    second = ranks.comm.barrier();  // throws where the cause has reached this rank already
    first.wait();
  } catch (const CommError&) {
    for (const std::function<void()>& call :
         {std::function<void()>([&] { (second ? second : ranks.comm.barrier()).wait(); }),
          std::function<void()>([&] { ranks.comm.progress(); })}) {
      try {
        call();
        return say(ranks.comm.rank(), "a call after the failure did not fail");
      } catch (const CommError&) {
      }
    }
  }
  ranks.comm.barrier().wait();
}

std::map<std::string, std::function<void(Ranks&)>> misuses() {
  const Issue sum = [](Communicator& c, float* d) { return c.all_reduce(d, 5000, DataType::kFloat32); };
  const auto sum_of = [](std::size_t count, DataType type, const ReduceOptions& options) -> Issue {
    return [=](Communicator& c, float* d) { return c.all_reduce(d, count, type, options); };
  };
  const auto from = [](int root) -> Issue {
    return [=](Communicator& c, float* d) { return c.broadcast(d, 10, DataType::kFloat32, root); };
  };
  return {
      {"operation", differing(sum, [](Communicator& c, float*) { return c.barrier(); })},
      {"kind", differing(sum, [](Communicator& c, float* d) { return c.reduce_parts(d, 5000, DataType::kFloat32); })},
      {"size", differing(sum, sum_of(4999, DataType::kFloat32, {}))},
      {"large-size", differing(sum_of(200'000, DataType::kFloat32, {}), sum_of(199'999, DataType::kFloat32, {}))},
      {"type", differing(sum, sum_of(5000, DataType::kInt32, {}))},
      {"reduction", differing(sum, sum_of(5000, DataType::kFloat32, {.op = ReduceOp::kMax}))},
      {"scale", differing(sum, sum_of(5000, DataType::kFloat32, {.post_scale = 0.5}))},
      {"bucket", differing(sum, sum_of(5000, DataType::kFloat32, {.bucket = 4}))},
      {"root", differing(from(0), from(1))},
      {"order", differing(
                    [](Communicator& c, float* d) {
                      c.all_reduce(d, 5000, DataType::kFloat32, {.bucket = 0});
                      return c.all_reduce(d + 6000, 5000, DataType::kFloat32, {.bucket = 1});
                    },
                    [](Communicator& c, float* d) {
                      c.all_reduce(d + 6000, 5000, DataType::kFloat32, {.bucket = 1});
                      return c.all_reduce(d, 5000, DataType::kFloat32, {.bucket = 0});
                    })},
      {"allocation",
       [](Ranks& ranks) {
         ranks.comm.barrier().wait();
         (void)ranks.comm.allocate(ranks.is_last() ? 2000 : 1000);
       }},
      {"never",
       [](Ranks& ranks) {
         without_last(ranks, [&] {
           while (!ranks.control.failure()) std::this_thread::sleep_for(milliseconds(5));
         });
       }},
      {"killed",
       [](Ranks& ranks) {
         without_last(ranks, [&] {
           std::this_thread::sleep_for(milliseconds(200));  // the others are in the middle of it
           say_when(ranks.comm.rank());
           ::raise(SIGKILL);
         });
       }},
      {"stopped", [](Ranks& ranks) { without_last(ranks, [] { ::raise(SIGSTOP); }); }},
      {"fails", [](Ranks& ranks) { without_last(ranks, [] { throw CommError("loss is NaN"); }); }},
      {"group",
       [](Ranks& ranks) {
         ranks.comm.begin_group();
         ranks.comm.barrier().wait();
       }},
      {"endless",
       [](Ranks& ranks) {
         std::vector<float> data(5000);
         for (;;) ranks.comm.all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
       }},
      {"nothing", [](Ranks&) {}},
      {"aborted", abort_elsewhere},
      {"another-fails",
       [](Ranks& ranks) {
         const auto other = ranks.another();
         ranks.comm.barrier().wait();
         other->abort("the disk is full");
         ranks.comm.barrier().wait();
       }},
      {"later-calls", later_calls},
  };
}

void run(const std::string& backend, const std::string& what, const std::string& name) {
  const bool conformance = what == "conformance";
  const milliseconds timeout(conformance ? 60'000 : 1'500);
  const auto job = MpiJob::join({.timeout = std::chrono::seconds(30), .grace = milliseconds(400)});
  ControlOptions options;
  options.world = {job->rank(), job->size(), job->rank(), job->size(), host::host_identity().key};
  if (backend == "alternating") options.world.host += job->rank() % 2 == 0 ? "/a" : "/b";
  options.timeout = timeout;
  options.heartbeat = milliseconds(100);
  ControlEndpoint endpoint{host::reachable_address("auto", ""), 0};
  std::unique_ptr<ControlPlane> control;
  if (job->rank() == 0) {
    options.secret = random_hex(32);
    control = ControlPlane::serve(options, endpoint, &endpoint);
  }
  const Json contact = Json::parse(
      job->broadcast(to_line({{"secret", options.secret}, {"address", endpoint.address}, {"port", endpoint.port}})));
  if (job->rank() != 0) {
    options.secret = contact["secret"].get<std::string>();
    control = ControlPlane::connect(options, {contact["address"].get<std::string>(), contact["port"]});
  }
  CommunicatorOptions communicator_options{timeout, std::chrono::seconds(30), make_null_logger()};
  const auto over_mpi = [&](ControlPlane& some, const std::vector<int>& members) {
    return job->make_communicator(some, members, communicator_options);
  };
  const auto over_shm = [&](ControlPlane& some, const std::vector<int>& members) {
    return make_shm_communicator(some, communicator_options, members);
  };
  std::vector<int> all(static_cast<std::size_t>(job->size()));
  std::iota(all.begin(), all.end(), 0);
  const auto make = [&] {
    return backend == "mpi" ? over_mpi(*control, all)
                            : make_hierarchical_communicator(*control, over_shm, over_mpi, communicator_options);
  };
  std::unique_ptr<Communicator> comm = make();
  const int rank = job->rank();
  try {
    if (conformance) {
      for (const auto& one : test::conformance_cases({.rank_order = backend == "mpi"})) {
        if (rank == 0) std::printf("CASE %s\n", one.name.c_str());
        one.run(*comm);
        if (testing::Test::HasFailure()) throw CommError("an expectation failed in " + one.name);
      }
    } else {
      Ranks ranks{*control, *comm, make};
      misuses().at(name)(ranks);
    }
    comm->barrier().wait();
    comm.reset();
    control->finish();
    job->succeed();
    say(rank, "ok");
  } catch (const std::exception& error) {
    say_when(rank);
    say(rank, error.what());
    control->fail({rank, -1, error.what()});
    comm.reset();
    std::this_thread::sleep_for(milliseconds(100));
    control.reset();
  }
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc < 3) return 2;
  // mpirun ends the others as soon as it has heard that a rank was killed. As in a run of dtrain they first say what
  // they have seen; SIGKILL follows a second later.
  ::signal(SIGTERM, SIG_IGN);
  try {
    dtrain::comm::run(argv[1], argv[2], argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::printf("RANK ? %s\n", error.what());
    return 1;
  }
  return 0;
}
