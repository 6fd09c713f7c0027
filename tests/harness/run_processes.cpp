#include "harness/run_processes.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::test {
namespace {

constexpr std::chrono::seconds kHangs{60};

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe(ends) != 0) throw SystemError("pipe", errno);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  UniqueFd read;
  UniqueFd write;
};

// All of `bytes`, or false at the end of the pipe.
bool read_all(int fd, void* data, std::size_t bytes) {
  for (std::size_t have = 0; have < bytes;) {
    const ssize_t got = ::read(fd, static_cast<char*>(data) + have, bytes - have);
    if (got <= 0) return false;
    have += static_cast<std::size_t>(got);
  }
  return true;
}

void write_all(int fd, const void* data, std::size_t bytes) {
  if (::write(fd, data, bytes) != static_cast<ssize_t>(bytes)) _exit(99);
}

struct Pipes {
  Pipe port;                 // rank 0 tells the others where it listens
  Pipe ready;                // every rank writes a byte once it has its communicator
  std::vector<Pipe> errors;  // by rank
};

[[noreturn]] void rank_process(const TestWorld& world, int rank, Pipes& pipes,
                               const std::function<void(comm::ControlPlane&, comm::Communicator&)>& fn,
                               const ProcessHooks& hooks) {
  int code = 0;
  try {
    std::unique_ptr<comm::ControlPlane> control;
    comm::ControlEndpoint endpoint;
    if (rank == 0) {
      control = comm::ControlPlane::serve(world.control_options(0), {}, &endpoint);
      for (int other = 1; other < world.size; ++other) {
        write_all(pipes.port.write.get(), &endpoint.port, sizeof endpoint.port);
      }
    } else {
      if (!read_all(pipes.port.read.get(), &endpoint.port, sizeof endpoint.port)) throw CommError("no port of rank 0");
      control = comm::ControlPlane::connect(world.control_options(rank), endpoint);
    }
    try {
      const auto communicator = hooks.communicator
                                    ? hooks.communicator(*control)
                                    : comm::make_shm_communicator(*control, world.communicator_options());
      communicator->barrier().wait();
      write_all(pipes.ready.write.get(), "r", 1);
      fn(*control, *communicator);
    } catch (const std::exception& error) {
      control->fail({rank, -1, error.what()});
      throw;
    }
    try {
      if (!control->failure()) control->finish();
    } catch (const CommError&) {
      // An operation of fn() may have been told of a failure before the control plane was.
      if (!control->failure()) throw;
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    write_all(pipes.errors[static_cast<std::size_t>(rank)].write.get(), text.data(),
              std::min<std::size_t>(text.size(), 4000));
    code = 1;
  }
  _exit(code);
}

// Waits until every rank has written its byte, or closed its end by dying.
void wait_until_running(Pipes& pipes, int size) {
  for (int ready = 0; ready < size; ++ready) {
    pollfd one{pipes.ready.read.get(), POLLIN, 0};
    char byte;
    if (poll(&one, 1, 30'000) <= 0 || !read_all(one.fd, &byte, 1)) return;
  }
}

}  // namespace

std::vector<RankOutcome> run_processes(const TestWorld& world,
                                       const std::function<void(comm::ControlPlane&, comm::Communicator&)>& fn,
                                       const ProcessHooks& hooks) {
  Pipes pipes;
  pipes.errors.resize(static_cast<std::size_t>(world.size));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world.size; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) throw SystemError("fork", errno);
    if (pid == 0) rank_process(world, rank, pipes, fn, hooks);
    pids.push_back(pid);
  }
  pipes.port.write.reset();
  pipes.ready.write.reset();
  for (Pipe& one : pipes.errors) one.write.reset();
  wait_until_running(pipes, world.size);
  if (hooks.running) hooks.running(pids);

  std::vector<RankOutcome> outcomes(pids.size());
  const auto deadline = std::chrono::steady_clock::now() + kHangs;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    int status = 0;
    while (waitpid(pids[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) ::kill(pids[rank], SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    RankOutcome& outcome = outcomes[rank];
    if (WIFSIGNALED(status)) outcome.status.signal = WTERMSIG(status);
    if (WIFEXITED(status)) outcome.status.code = WEXITSTATUS(status);
    char text[4000];
    const ssize_t got = ::read(pipes.errors[rank].read.get(), text, sizeof text);
    if (got > 0) outcome.error.assign(text, static_cast<std::size_t>(got));
  }
  return outcomes;
}

}  // namespace dtrain::test
