#include "launch/job_ranks.h"

#include <csignal>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/scheduler/rank_mark.h"
#include "launch/watcher.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kErrorsKept = 64 * 1024;

}  // namespace

// A failing rank informs the others and ends the job with MPI_Abort; without MPI the ranks end by themselves. If a host
// does not answer, mpirun and srun would wait for it.
const JobRanks::Patience JobRanks::kAfterFailure{std::chrono::seconds(8), std::chrono::seconds(12)};
const JobRanks::Patience JobRanks::kAfterSilence{std::chrono::milliseconds(1500), std::chrono::milliseconds(2500)};
const JobRanks::Patience JobRanks::kAfterFinish{std::chrono::seconds(30), std::chrono::seconds(38)};

JobRanks::JobRanks(const Attempt& attempt, RankPlane& plane, const Job& job)
    : attempt_(attempt), plane_(plane), process_(start(job)) {
  attempt_.task.add_process(job.name, process_.pid());
  attempt_.events.write(job.name + "_started", {{"pid", process_.pid()}, {"command", job.command}});
}

Process JobRanks::start(const Job& job) {
  const std::filesystem::path log = attempt_.folder.logs() / (job.name + ".log");
  log_.emplace(log);  // the launch fails if its log cannot be opened
  const UniqueFd out = out_.open();
  const UniqueFd errors = errors_.open();
  const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions options;
  options.command = job.command;
  options.environment = job.variables;
  // The mark identifies the ranks if this process is killed before it has recorded them.
  options.environment[scheduler::kRankMark] = scheduler::rank_mark(::getpid());
  options.unset = job.unset;
  options.fds = {{0, in.get()}, {1, out.get()}, {2, errors.get()}};
  return Process::start(options);
}

JobEnd JobRanks::end() {
  end_.hosts = plane_.hosts();
  return end_;
}

void JobRanks::add_descriptors(std::vector<pollfd>& descriptors) const {
  descriptors.push_back({process_.pidfd(), POLLIN, 0});
  for (const OutputPipe* output : {&out_, &errors_}) {
    if (output->fd() >= 0) descriptors.push_back({output->fd(), POLLIN, 0});
  }
}

void JobRanks::take(bool) {
  out_.read([this](const std::string& line) { attempt_.screen.line(line); });
  errors_.read([this](const std::string& line) {
    keep(line);
    end_.errors += line + "\n";
    if (end_.errors.size() > 2 * kErrorsKept) end_.errors.erase(0, kErrorsKept);
  });
  if (const auto progress = plane_.take_progress()) attempt_.screen.progress(*progress);
  end_.joined = plane_.joined();
  if (ended_) return;
  if (const auto status = process_.wait(std::chrono::milliseconds(0))) {
    end_.status = *status;
    ended_ = true;
  }
}

void JobRanks::judge() {
  if (!end_.error && (end_.error = plane_.error())) {
    attempt_.task.enter(scheduler::TaskState::kStopping, end_.error->cause);
    end_within(end_.error->departure == comm::Departure::kSilent ? kAfterSilence : patience_);
  }
  if (end_.finished || !plane_.all_finished()) return;
  end_.finished = true;
  end_.exit_code = plane_.exit_code();
  try {
    plane_.finish();
  } catch (const CommError&) {
    // A rank died while it ended; its exit code shows that.
  }
  end_within(kAfterFinish);
}

void JobRanks::end_within(const Patience& patience) {
  hangs_since_ = attempt_.clock.monotonic();
  patience_ = patience;
}

void JobRanks::interrupt(const Interrupt& interrupt) {
  end_.interrupts = interrupt.count;
  if (interrupt.count == 1) end_.interrupt = interrupt;
  if (interrupt.count == 1 && plane_.joined() > 0) {
    attempt_.screen.line(stopping_line(interrupt));
    if (!interrupt.repeats) plane_.stop(interrupt.signal);
  } else {
    attempt_.screen.line("dtrain: " + interrupt.why + ": killing the ranks");
    process_.kill(SIGTERM);
    hangs_since_ = attempt_.clock.monotonic();
  }
}

void JobRanks::end_what_hangs() {
  if (ended_ || !hangs_since_) return;
  const Nanoseconds since = attempt_.clock.monotonic() - *hangs_since_;
  if (since >= patience_.before_term && !std::exchange(terminated_, true)) process_.kill(SIGTERM);
  if (since >= patience_.before_kill && !std::exchange(killed_, true)) process_.kill_group(SIGKILL);
}

// A full disk does not end the launch: the outcome does not depend on this log.
void JobRanks::keep(const std::string& line) {
  try {
    log_->append(line + "\n");
  } catch (const SystemError& error) {
    if (!std::exchange(log_is_torn_, true)) attempt_.screen.line("dtrain: warning: " + describe(error));
  }
}

JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job) {
  JobRanks ranks(attempt, plane, job);
  watch_ranks(attempt, ranks);
  return ranks.end();
}

}  // namespace dtrain::run
