#include "commands/kept_rank.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <regex>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kNameOfKeeper = "dtrain-rank";  // in lists of processes
constexpr std::chrono::milliseconds kLookAtParent{250};
// Longer than ranks take to leave a step and to save (ExitDeadlines), and than the launcher waits for them.
constexpr std::chrono::seconds kStay{15};
// Without mpirun or its daemon. Then the next attempt may begin here: this rank must not write into its memory.
constexpr std::chrono::seconds kOrphanStays{1};

std::string line_of(const EndedRank& ended) {
  const bool killed = ended.status.signal != 0;
  return "dtrain start-rank: rank " + std::to_string(ended.rank) +
         (killed ? " was killed by signal " : " ended with exit status ") +
         std::to_string(killed ? ended.status.signal : ended.status.code) + "\n";
}

}  // namespace

void keep_rank(const std::vector<std::string>& command, int rank) {
  // mpirun signals the process group, which the rank belongs to.
  const BlockedSignals blocked;
  ::prctl(PR_SET_NAME, kNameOfKeeper);
  const pid_t mpi = ::getppid();
  const auto is_orphan = [mpi] { return ::getppid() != mpi; };
  ProcessOptions options{.command = command, .fds = {{0, 0}, {1, 1}, {2, 2}}};
  options.new_process_group = false;
  options.ends_with_parent = true;
  Process process = Process::start(options);
  std::optional<ExitStatus> status;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (auto kept = now(); !status && now() - kept < kOrphanStays;) {
    status = process.wait(kLookAtParent);
    if (!is_orphan()) kept = now();
  }
  if (!status) {
    process.kill(SIGKILL);
    ::_exit(static_cast<int>(ExitCode::kRunFailed));
  }
  if (status->success()) ::_exit(0);
  write_all(STDERR_FILENO, line_of({rank, *status}));
  for (auto waited = kLookAtParent; waited < kStay && !is_orphan(); waited += kLookAtParent) {
    ::usleep(static_cast<useconds_t>(std::chrono::microseconds(kLookAtParent).count()));
  }
  ::_exit(status->signal == 0 ? status->code : static_cast<int>(ExitCode::kRunFailed));
}

std::optional<EndedRank> read_end_of_rank(const std::string& line) {
  static const std::regex form(
      "dtrain start-rank: rank ([0-9]{1,9}) (was killed by signal|ended with exit status) ([0-9]{1,3})");
  std::smatch found;
  if (!std::regex_search(line, found, form)) return std::nullopt;
  EndedRank ended{.rank = std::stoi(found[1]), .status = {}};
  const bool killed = found[2].str().starts_with("was");
  (killed ? ended.status.signal : ended.status.code) = std::stoi(found[3]);
  return ended;
}

}  // namespace dtrain::launcher
