#include "launch/job_watch.h"

#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/scheduler/rank_mark.h"

namespace dtrain::run {
namespace {

constexpr int kPollMs = 50;
constexpr std::size_t kErrorsKept = 64 * 1024;
// A failing rank tells the others and ends the job (MPI_Abort, or srun's --kill-on-bad-exit). Where a host does not
// answer, whoever should end it waits for that host.
struct Patience {
  std::chrono::milliseconds before_term;
  std::chrono::milliseconds before_kill;
};
constexpr Patience kPatience{std::chrono::seconds(8), std::chrono::seconds(12)};
constexpr Patience kPatienceWithSilence{std::chrono::milliseconds(1500), std::chrono::milliseconds(2500)};
constexpr auto kPatienceWhenFinished = std::chrono::seconds(30);

// One of the job's outputs.
struct Output {
  UniqueFd fd;
  std::string partial;  // a line that has not ended

  template <class OnLine>
  void read(const OnLine& on_line) {
    std::array<char, 16 * 1024> buffer{};
    while (fd) {
      const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
      if (count < 0) return;  // nothing more now
      if (count == 0) {
        if (!partial.empty()) on_line(partial);
        partial.clear();
        fd.reset();
        return;
      }
      partial.append(buffer.data(), static_cast<std::size_t>(count));
      std::size_t begin = 0;
      for (std::size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
        on_line(partial.substr(begin, end - begin));
      }
      partial.erase(0, begin);
    }
  }
};

UniqueFd open_pipe(Output& output) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  output.fd.reset(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return UniqueFd(ends[1]);
}

class Watch {
 public:
  Watch(const Attempt& attempt, RankPlane& plane, const Job& job)
      : attempt_(attempt),
        plane_(plane),
        log_(attempt.folder.logs() / (job.name + ".log")),
        process_(start(job)),
        patience_(kPatience) {
    attempt_.task.add_process(job.name, process_.pid());
    attempt_.events.write(job.name + "_started", {{"pid", process_.pid()}, {"command", job.command}});
  }

  JobEnd run() {
    while (true) {
      wait_for_events();
      take_signals();
      read_outputs();
      listen();
      end_what_hangs();
      if (const auto status = process_.wait(std::chrono::milliseconds(0))) {
        end_.status = *status;
        break;
      }
    }
    read_outputs();
    listen();
    end_.hosts = plane_.hosts();
    attempt_.screen.end_progress();
    return end_;
  }

 private:
  Process start(const Job& job) {
    const UniqueFd out = open_pipe(out_);
    const UniqueFd errors = open_pipe(errors_);
    const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ProcessOptions options;
    options.command = job.command;
    options.environment = job.variables;
    // What is started here is known by this, should this process be killed before anybody has written it down.
    options.environment[scheduler::kRankMark] = scheduler::rank_mark(::getpid());
    options.unset = job.unset;
    options.fds = {{0, in.get()}, {1, out.get()}, {2, errors.get()}};
    return Process::start(options);
  }

  void wait_for_events() {
    std::vector<pollfd> fds{{attempt_.signals.fd(), POLLIN, 0}, {process_.pidfd(), POLLIN, 0}};
    for (const Output* output : {&out_, &errors_}) {
      if (output->fd) fds.push_back({output->fd.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), kPollMs);
  }

  void take_signals() {
    while (const auto signal = attempt_.signals.next()) interrupt(signal_name(*signal), *signal);
    for (const int kills = attempt_.task.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill", SIGTERM);
  }

  void interrupt(const std::string& why, int signal) {
    ++end_.interrupts;
    attempt_.events.write("interrupted", {{"signal", why}});
    if (end_.interrupts == 1) {
      end_.interrupted_by = why;
      attempt_.task.enter(scheduler::TaskState::kStopping, why);
    }
    if (end_.interrupts == 1 && plane_.joined() > 0) {
      attempt_.screen.line("dtrain: " + why + ": stopping after the current step; once more to kill the ranks");
      plane_.stop(signal);
    } else {
      attempt_.screen.line("dtrain: " + why + ": killing the ranks");
      process_.kill(SIGTERM);
      hangs_since_ = attempt_.clock.monotonic();
    }
  }

  void read_outputs() {
    out_.read([this](const std::string& line) { attempt_.screen.line(line); });
    errors_.read([this](const std::string& line) {
      keep(line);
      end_.errors += line + "\n";
      if (end_.errors.size() > 2 * kErrorsKept) end_.errors.erase(0, kErrorsKept);
    });
  }

  // Without this log a run goes on, and its outcome is the same.
  void keep(const std::string& line) {
    try {
      log_.append(line + "\n");
    } catch (const SystemError& error) {
      if (!std::exchange(log_is_torn_, true)) attempt_.screen.line("dtrain: warning: " + describe(error));
    }
  }

  void listen() {
    if (const auto progress = plane_.take_progress()) attempt_.screen.progress(*progress);
    end_.joined = plane_.joined();
    if (end_.joined == attempt_.plan.world_size() && end_.interrupts == 0 && !std::exchange(running_, true)) {
      attempt_.task.enter(scheduler::TaskState::kRunning);
    }
    if (!end_.error && (end_.error = plane_.error())) {
      hangs_since_ = attempt_.clock.monotonic();
      attempt_.task.enter(scheduler::TaskState::kStopping, end_.error->cause);
      if (end_.error->departure == comm::Departure::kSilent) patience_ = kPatienceWithSilence;
    }
    if (end_.finished || !plane_.all_finished()) return;
    end_.finished = true;
    end_.exit_code = plane_.exit_code();
    try {
      plane_.finish();
    } catch (const CommError&) {
      // One of them died on its way out: its exit code tells.
    }
    hangs_since_ = attempt_.clock.monotonic();
    patience_ = {kPatienceWhenFinished, kPatienceWhenFinished + kPatience.before_term};
  }

  void end_what_hangs() {
    if (!hangs_since_) return;
    const Nanoseconds since = attempt_.clock.monotonic() - *hangs_since_;
    if (since >= patience_.before_term && !std::exchange(terminated_, true)) process_.kill(SIGTERM);
    if (since >= patience_.before_kill && !std::exchange(killed_, true)) process_.kill_group(SIGKILL);
  }

  const Attempt& attempt_;
  RankPlane& plane_;
  LineAppender log_;
  Output out_;
  Output errors_;
  Process process_;
  JobEnd end_;
  Patience patience_;
  std::optional<Nanoseconds> hangs_since_;
  int kills_ = 0;         // those of `dtrain task kill` among the interrupts
  bool running_ = false;  // all ranks have joined
  bool terminated_ = false;
  bool killed_ = false;
  bool log_is_torn_ = false;
};

}  // namespace

JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job) {
  return Watch(attempt, plane, job).run();
}

}  // namespace dtrain::run
