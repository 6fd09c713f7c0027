#include "launch/slurm_submit.h"

#include <csignal>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "commands/job_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/screen.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kSubmitPollMs = 100;

fs::path submission_file(const fs::path& run_dir) {
  return run_dir / "launch" / "submitted";
}

// The file exists if the user has stopped the run through the launch that submitted the job.
fs::path stop_file(const fs::path& run_dir) {
  return run_dir / "launch" / "stop";
}

std::string without_line_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string trimmed_file(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return {};
  return without_line_end(read_file(path));
}

SbatchJob job_of(const PlacedLaunch& placed, const fs::path& run_dir, const std::string& token) {
  SbatchJob job{.dtrain = executable_path(),
                .experiment = fs::absolute(placed.experiment.file).lexically_normal(),
                .contents = placed.asked.contents,
                .run_dir = run_dir,
                .folder = fs::current_path(),
                .token = token};
  const fs::path& cluster = placed.cluster.cluster.file;
  if (!cluster.empty()) job.cluster = fs::absolute(cluster).lexically_normal();
  return job;
}

void run_quietly(std::vector<std::string> command) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = std::move(command);
  options.fds = {{0, null.get()}, {1, null.get()}, {2, null.get()}};
  Process::start(options).wait(std::chrono::seconds(10));
}

// Runs the command and returns what it prints on standard output and error.
std::string said_by(std::vector<std::string> command) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe pipe = make_pipe();
  ProcessOptions options;
  options.command = std::move(command);
  options.fds = {{0, null.get()}, {1, pipe.writer.get()}, {2, pipe.writer.get()}};
  Process process = Process::start(options);
  pipe.writer.reset();
  const std::string text = read_to_end(pipe.reader.get()).value_or("");
  process.wait(std::chrono::seconds(10));
  return without_line_end(text);
}

// The job, as the process that submitted it follows it.
class SubmittedJob {
 public:
  explicit SubmittedJob(const Attempt& attempt)
      : attempt_(attempt),
        said_(attempt.folder.launch() / "sbatch.out"),
        errors_(attempt.folder.launch() / "sbatch.err") {}

  Outcome follow(const fs::path& script) {
    Process sbatch = start(script);
    attempt_.task.add_process("sbatch", sbatch.pid());
    rank::LogTail tail;
    tail.add(0, batch_output(attempt_.folder.path));
    const auto show = [this](int, std::string_view line) { attempt_.screen.line(line); };
    std::optional<ExitStatus> status;
    while (!(status = sbatch.wait(std::chrono::milliseconds(0)))) {
      pollfd fds[] = {{attempt_.signals.fd(), POLLIN, 0}, {sbatch.pidfd(), POLLIN, 0}};
      ::poll(fds, 2, kSubmitPollMs);
      learn_id();
      take_interrupts();
      tail.poll(show);
    }
    learn_id();
    tail.finish(show);
    return judge(*status);
  }

 private:
  Process start(const fs::path& script) {
    const auto open = [](const fs::path& path) {
      return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    };
    const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const UniqueFd out = open(said_);
    const UniqueFd errors = open(errors_);
    ProcessOptions options;
    options.command = {"sbatch", "--parsable", "--wait", script.string()};
    options.fds = {{0, in.get()}, {1, out.get()}, {2, errors.get()}};
    return Process::start(options);
  }

  void learn_id() {
    if (!id_.empty()) return;
    const std::string text = trimmed_file(said_);
    id_ = text.substr(0, text.find(';'));  // a cluster's name may follow
    if (id_.empty()) return;
    attempt_.events.write("job_submitted", {{"job", id_}});
    attempt_.screen.line("dtrain: submitted as Slurm job " + id_ + "; its output is " +
                         batch_output(attempt_.folder.path).string());
    attempt_.task.enter(scheduler::TaskState::kRunning, "Slurm job " + id_);
  }

  void take_interrupts() {
    while (const auto signal = attempt_.signals.next()) interrupt(rank::signal_name(*signal), *signal);
    for (const int kills = attempt_.task.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill", SIGINT);
  }

  void interrupt(const std::string& why, int signal) {
    ++interrupts_;
    interrupt_ = {.why = why, .signal = signal, .count = interrupts_};
    if (id_.empty()) return;
    attempt_.screen.line("dtrain: " + why + (interrupts_ == 1 ? ": stopping job " : " again: cancelling job ") + id_);
    if (interrupts_ == 1) {
      write_file_atomic(stop_file(attempt_.folder.path), why);
      run_quietly({"scancel", "--batch", signal == SIGINT ? "--signal=INT" : "--signal=TERM", id_});
    }
    if (interrupts_ == 1 && !has_started()) run_quietly({"scancel", id_});
    if (interrupts_ > 1) run_quietly({"scancel", id_});
  }

  bool has_started() const { return fs::exists(batch_output(attempt_.folder.path)); }

  Outcome judge(const ExitStatus& status) {
    Outcome outcome;
    outcome.reported = has_started();
    if (status.success()) return outcome;
    outcome.exit_code = status.signal != 0 ? ExitCode::kRunFailed : status.exit_code();
    const bool preempted = outcome.exit_code == ExitCode::kPreempted;
    if (interrupts_ > 0) {
      if (!preempted) outcome.exit_code = ExitCode::kInterrupted;
      outcome.interrupt = interrupt_;
      return outcome;
    }
    if (preempted || outcome.exit_code == ExitCode::kInterrupted) {
      outcome.interrupt = {.why = "Slurm"};
      return outcome;
    }
    const std::string name = id_.empty() ? "sbatch" : "the Slurm job " + id_;
    const std::string said = trimmed_file(errors_);
    outcome.failure = Failure{.cause = name + " ended with " + status.describe() + (said.empty() ? "" : ": " + said)};
    return outcome;
  }

  const Attempt& attempt_;
  fs::path said_;
  fs::path errors_;
  std::string id_;
  Interrupt interrupt_;
  int interrupts_ = 0;
  int kills_ = 0;
};

}  // namespace

std::string batch_script_of(const PlacedLaunch& placed, const rank::Variables& variables) {
  if (!needs_allocation(placed, variables)) return {};
  const fs::path& run_dir = placed.asked.run_dir;
  PlacedLaunch shown = placed;
  for (std::string& override : shown.asked.overrides) override = config::shown_override(override);
  return batch_script(shown, job_of(placed, run_dir.empty() ? run_dir : fs::absolute(run_dir).lexically_normal(), {}));
}

Outcome submit_and_follow(const Attempt& attempt) {
  const std::string token = random_hex(16);
  make_folder(attempt.folder.launch());
  write_file_atomic(submission_file(attempt.folder.path), token);
  fs::remove(stop_file(attempt.folder.path));
  const fs::path script = attempt.folder.launch() / "job.sh";
  write_file_atomic(script, batch_script(attempt.placed, job_of(attempt.placed, attempt.folder.path, token)),
                    attempt.placed.experiment.private_mode());
  return SubmittedJob(attempt).follow(script);
}

bool is_job_of(const fs::path& run_dir, const rank::Variables& variables) {
  const auto token = variables.find("DTRAIN_SUBMITTED");
  return !run_dir.empty() && token != variables.end() && !slurm_job(variables).empty() &&
         trimmed_file(submission_file(run_dir)) == token->second;
}

std::string requeue_job(const rank::RunFolder& folder, const rank::Variables& variables) {
  const std::string job = slurm_job(variables);
  if (fs::exists(stop_file(folder.path))) return {};
  const std::string state = said_by({"scontrol", "show", "job", "--oneliner", job});
  // A job that was cancelled, or that Slurm itself queues again, is not in this state any more.
  if (state.find(" JobState=RUNNING ") == std::string::npos) return {};
  const std::string error = said_by({"scontrol", "requeue", job});
  if (error.empty()) return "the Slurm job " + job + " is queued again and goes on from there";
  return "the Slurm job " + job + " could not be queued again: " + error + "; dtrain launch --continue " +
         folder.path.string() + " lets the run go on";
}

}  // namespace dtrain::launcher
