#include "launch/slurm_submit.h"

#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/log_tail.h"
#include "launch/attempts.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr int kSubmitPollMs = 100;

fs::path submission_file(const fs::path& run_dir) {
  return run_dir / "launch" / "submitted";
}

std::string trimmed_file(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return {};
  std::string text = read_file(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

BatchJob job_of(const LaunchPlan& plan, const fs::path& run_dir, const std::string& token) {
  BatchJob job{.dtrain = executable_path(),
               .experiment = fs::absolute(plan.experiment.file).lexically_normal(),
               .run_dir = run_dir,
               .folder = fs::current_path(),
               .token = token};
  const fs::path& cluster = plan.cluster.cluster.file;
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
    LogTail tail;
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
    while (const auto signal = attempt_.signals.next()) interrupt(signal_name(*signal));
    for (const int kills = attempt_.task.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill");
  }

  void interrupt(const std::string& why) {
    ++interrupts_;
    interrupted_by_ = why;
    if (id_.empty()) return;
    attempt_.screen.line("dtrain: " + why + (interrupts_ == 1 ? ": stopping job " : " again: cancelling job ") + id_);
    if (interrupts_ == 1) run_quietly({"scancel", "--batch", "--signal=TERM", id_});
    if (interrupts_ == 1 && !has_started()) run_quietly({"scancel", id_});
    if (interrupts_ > 1) run_quietly({"scancel", id_});
  }

  bool has_started() const { return fs::exists(batch_output(attempt_.folder.path)); }

  Outcome judge(const ExitStatus& status) {
    Outcome outcome;
    outcome.reported = has_started();
    if (status.success()) return outcome;
    outcome.exit_code = status.signal != 0 ? static_cast<int>(ExitCode::kRunFailed) : status.code;
    if (interrupts_ > 0) {
      outcome.exit_code = static_cast<int>(ExitCode::kInterrupted);
      outcome.interrupted_by = interrupted_by_;
      return outcome;
    }
    if (outcome.exit_code == static_cast<int>(ExitCode::kInterrupted)) {
      outcome.interrupted_by = "Slurm";
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
  std::string interrupted_by_;
  int interrupts_ = 0;
  int kills_ = 0;
};

// Why the last attempt in this folder ended.
std::string reason_of_the_end(const RunFolder& folder) {
  std::string reason;
  std::ifstream file(folder.events());
  for (std::string line; std::getline(file, line);) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) continue;
    const std::string what = event.value("event", std::string());
    if (what == "run_started") reason.clear();
    if (what == "interrupted") reason = "interrupted by " + event.value("signal", std::string("a signal"));
    if (what == "run_ended" && event.contains("cause")) reason = event.value("cause", std::string());
  }
  return reason.empty() ? "it ended without a report: its node was lost, or Slurm killed it" : reason;
}

}  // namespace

std::string batch_script_of(const LaunchPlan& plan, const Variables& variables, const fs::path& run_dir) {
  if (!needs_allocation(plan, variables)) return {};
  return batch_script(plan, job_of(plan, run_dir.empty() ? fs::path() : fs::absolute(run_dir).lexically_normal(), {}));
}

Outcome submit_and_follow(const Attempt& attempt) {
  const std::string token = random_hex(16);
  make_folder(attempt.folder.launch());
  write_file_atomic(submission_file(attempt.folder.path), token);
  const fs::path script = attempt.folder.launch() / "job.sh";
  write_file_atomic(script, batch_script(attempt.plan, job_of(attempt.plan, attempt.folder.path, token)));
  return SubmittedJob(attempt).follow(script);
}

RunFolder folder_of_launch(const LaunchRequest& request, const LaunchPlan& plan, const Variables& variables,
                           const Clock& clock) {
  const auto token = variables.find("DTRAIN_SUBMITTED");
  const fs::path path = request.run_dir.empty() ? fs::path() : fs::absolute(request.run_dir).lexically_normal();
  const bool is_its_job = !path.empty() && token != variables.end() && !slurm_job(variables).empty() &&
                          trimmed_file(submission_file(path)) == token->second;
  if (!is_its_job) return create_run_folder(request.run_dir, plan.experiment.name, plan.experiment.text);
  RunFolder folder{path};
  const auto count = variables.find("SLURM_RESTART_COUNT");
  if (count == variables.end()) return folder;
  const std::string reason = reason_of_the_end(folder);
  const int number = put_aside(folder);
  EventLog(folder.events(), clock, -1, plan.host)
      .write("requeued", {{"job", slurm_job(variables)},
                          {"restart", std::atoi(count->second.c_str())},
                          {"attempt", number},
                          {"reason", reason}});
  return folder;
}

}  // namespace dtrain::run
