// dtrain-saver: the process that writes checkpoints. Started by checkpoints::Saver with its settings as one JSON
// argument. File descriptor 3 is the socket to it, 4 the memory with the snapshots, 5 the storage's lock file.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "dtrain/base/background.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "saver/messages.h"
#include "saver/saver_loop.h"

namespace {

using namespace dtrain;
using namespace dtrain::checkpoints;

// When memory runs out, training goes first. The affinity is that of the rank that started this process: here every
// processor that is idle will do (the kernel takes away what this process may not use). Each call may be forbidden,
// which only costs the advantage.
void step_back() {
  constexpr const char* kOomScore = "500";  // of 1000
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(static_cast<std::size_t>(cpu), &all);
  ::sched_setaffinity(0, sizeof all, &all);
  const UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) write_all(score.get(), kOomScore);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || ::fcntl(kSocketFd, F_GETFD) < 0 || ::fcntl(kMemoryFd, F_GETFD) < 0) {
    std::fputs("dtrain-saver is started by dtrain, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kBadInput);
  }
  ignore_polite_ends();
  ::fcntl(kSocketFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kMemoryFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kLockFd, F_SETFD, FD_CLOEXEC);
  step_back();
  try {
    const Json settings = Json::parse(argv[1]);
    const SaverOptions options = saver_options_from(settings);
    redirect_output(options.log);
    [[maybe_unused]] const int moved = ::chdir("/");  // keeps no file system in use
    StorageLock lock(options.storage);
    if (settings.at("locked") == true) lock.adopt(UniqueFd(kLockFd));
    serve(options, UnixSocket(UniqueFd(kSocketFd)), UniqueFd(kMemoryFd), std::move(lock),
          settings.at("starter_pid").get<pid_t>(), make_stderr_logger());
    return static_cast<int>(ExitCode::kDone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-saver: %s\n", describe(error).c_str());
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
