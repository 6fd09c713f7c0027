#include "calibration/rank_processes.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"

namespace dtrain::calibration {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeader = kPage;  // bytes of the barrier's page

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::size_t bytes_of_values(const RankProcessOptions& options) {
  return whole_pages(static_cast<std::size_t>(options.ranks) * options.values * sizeof(double));
}

void pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) throw SystemError("cannot pin a process to its CPUs", errno);
}

// Runs a forked process. It ends without destructors and exit handlers, which belong to its parent.
[[noreturn]] void run_rank(int rank, pid_t parent, const RankProcessOptions& options, const SharedMemory& memory,
                           const std::function<void(RankProcess&)>& work) {
  int code = 0;
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent has ended already
    const auto index = static_cast<std::size_t>(rank);
    if (index < options.cpus.size()) pin(options.cpus[index]);
    RankProcess self(rank, options, memory.data());
    const std::byte* const own = self.shared_of(rank);
    if (options.shared_bytes > 0) {
      memory.reserve(static_cast<std::size_t>(own - memory.data()), whole_pages(options.shared_bytes));
    }
    work(self);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-calibrate: rank %d: %s\n", rank, describe(error).c_str());
    code = 1;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

RankProcess::RankProcess(int rank, const RankProcessOptions& options, std::byte* memory)
    : rank_(rank), options_(options), memory_(memory) {}

void RankProcess::barrier() {
  Barrier& all = arrivals();
  const int generation = all.generation.load(std::memory_order_acquire);
  if (all.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == options_.ranks) {
    all.arrived.store(0, std::memory_order_relaxed);
    all.generation.store(generation + 1, std::memory_order_release);
    return;
  }
  while (all.generation.load(std::memory_order_acquire) == generation) ::sched_yield();
}

double* RankProcess::values_of(int rank) const {
  return reinterpret_cast<double*>(memory_ + kHeader) + static_cast<std::size_t>(rank) * options_.values;
}

std::byte* RankProcess::shared_of(int rank) const {
  return memory_ + kHeader + bytes_of_values(options_) +
         static_cast<std::size_t>(rank) * whole_pages(options_.shared_bytes);
}

std::size_t RankProcess::bytes(const RankProcessOptions& options) {
  return kHeader + bytes_of_values(options) +
         static_cast<std::size_t>(options.ranks) * whole_pages(options.shared_bytes);
}

std::vector<double> run_rank_processes(const RankProcessOptions& options,
                                       const std::function<void(RankProcess&)>& work) {
  const SharedMemory memory = SharedMemory::create_unreserved("calibration", RankProcess::bytes(options));
  memory.reserve(0, kHeader + bytes_of_values(options));
  const pid_t parent = ::getpid();
  std::vector<pid_t> running;
  const auto end_all = [&] {
    for (const pid_t pid : running) ::kill(pid, SIGKILL);
    for (const pid_t pid : running) ::waitpid(pid, nullptr, 0);
  };
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) run_rank(rank, parent, options, memory, work);
    if (pid < 0) {
      const int reason = errno;
      end_all();
      throw SystemError("cannot start a process", reason, limit_of_fork(reason));
    }
    running.push_back(pid);
  }
  while (!running.empty()) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    std::erase(running, pid);
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    end_all();  // the others would wait in a barrier
    throw Error("a process that measures has ended with " + (WIFSIGNALED(status)
                                                                 ? "signal " + std::to_string(WTERMSIG(status))
                                                                 : "status " + std::to_string(WEXITSTATUS(status))));
  }
  const RankProcess reader(0, options, memory.data());
  const double* const first = reader.values_of(0);
  return {first, first + static_cast<std::size_t>(options.ranks) * options.values};
}

}  // namespace dtrain::calibration
