#include "launch/launch_task.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "dtrain/base/limits.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/screen.h"
#include "launch/resizing.h"

namespace dtrain::launcher {
namespace {

using scheduler::TaskState;

constexpr int kQueuePollMs = 100;
constexpr auto kLookPeriod = std::chrono::milliseconds(250);
constexpr std::size_t kDetachedLines = 15;

// The width of the row names of render_plan().
constexpr const char* kIndent = "            ";

void put(int from, int to) {
  if (::dup2(from, to) < 0) throw SystemError("cannot redirect descriptor " + std::to_string(to), errno);
}

// Returns advice on how to shorten the wait.
std::string advice(const scheduler::Waiting& waiting) {
  if (waiting.behind.empty()) return {};
  return std::string(kIndent) + "dtrain task list shows the queue; dtrain task kill ID ends a task\n";
}

std::string background(const LaunchTask& task, const std::filesystem::path& run_dir) {
  const std::string id = std::to_string(task.id());
  return "task        " + id + "\nrun         " + run_dir.string() + "\n" + kIndent + "dtrain logs -f " +
         run_dir.string() + "\n" + kIndent + "dtrain task wait " + id + ", dtrain task kill " + id + "\n";
}

}  // namespace

LaunchTask::LaunchTask(const std::filesystem::path& state_folder, const scheduler::TaskRequest& request,
                       const Clock& clock)
    : clock_(clock), ledger_(scheduler::Ledger::open(state_folder, clock)), id_(ledger_.submit(request)) {}

LaunchTask::~LaunchTask() {
  if (!ended_) end(ExitCode::kRunFailed, "the launcher ended with an error of its own");
}

std::optional<scheduler::Claim> LaunchTask::wait_for_slots(
    rank::LaunchSignals& signals, const std::function<void(const scheduler::Waiting&)>& say,
    const std::function<void(const scheduler::Resize&)>& resize) {
  std::optional<scheduler::Waiting> said;
  while (true) {
    if (const auto signal = signals.next()) {
      cancelled_ = {.why = rank::signal_name(*signal) + " while it was queued", .signal = *signal};
      return std::nullopt;
    }
    const scheduler::Orders orders = ledger_.orders(id_);
    if (orders.kills > 0) {
      cancelled_ = {.why = "dtrain task kill while it was queued", .signal = SIGINT};
      return std::nullopt;
    }
    if (orders.resize) resize(*orders.resize);
    scheduler::Waiting waiting;
    if (auto claim = ledger_.try_claim(id_, &waiting)) return claim;
    if (said != waiting) {
      say(waiting);
      said = waiting;
    }
    pollfd readable{signals.fd(), POLLIN, 0};
    ::poll(&readable, 1, kQueuePollMs);
  }
}

void LaunchTask::guarded(const std::function<void()>& change) {
  try {
    change();
  } catch (const Error& error) {
    if (!std::exchange(warned_, true)) std::fprintf(stderr, "dtrain: warning: %s\n", describe(error).c_str());
  }
}

void LaunchTask::add_process(const std::string& name, pid_t pid) {
  guarded([&] { ledger_.add_process(id_, name, pid); });
}

void LaunchTask::enter(TaskState state, const std::string& reason) {
  guarded([&] { ledger_.set_state(id_, state, reason); });
}

int LaunchTask::kills() {
  const Nanoseconds now = clock_.monotonic();
  if (now - looked_at_ < kLookPeriod) return kills_;
  looked_at_ = now;
  guarded([&] {
    const scheduler::Orders orders = ledger_.orders(id_);
    // Other tasks may be using the slots by now.
    kills_ = orders.lost ? 2 : orders.kills;
    yield_ = orders.yield;
    resize_ = orders.resize;
  });
  return kills_;
}

void LaunchTask::refuse_slots(int slots, const std::string& cause) {
  guarded([&] { ledger_.refuse_slots(id_, slots, cause); });
  resize_.reset();
}

void LaunchTask::requeue(const std::string& reason, const scheduler::TaskRequest* resized) {
  ledger_.requeue(id_, reason, resized);
  yield_.clear();
  resize_.reset();
}

void LaunchTask::end(ExitCode exit_code, const std::string& cause) {
  if (std::exchange(ended_, true)) return;
  TaskState state = TaskState::kFailed;
  if (exit_code == ExitCode::kDone) state = TaskState::kDone;
  const bool stopped = exit_code == ExitCode::kInterrupted || exit_code == ExitCode::kPreempted;
  if (stopped) state = TaskState::kInterrupted;
  guarded([&] { ledger_.end(id_, state, cause, static_cast<int>(exit_code)); });
}

Detached::Detached(const std::filesystem::path& log) : log_(log) {
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!output) throw SystemError("cannot write the log " + log.string(), errno);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe pipe = make_pipe();
  child_ = ::fork();
  if (child_ < 0) {
    const int code = errno;
    throw SystemError("cannot start the launcher in the background", code, limit_of_fork(code));
  }
  if (child_ > 0) {
    word_ = std::move(pipe.reader);
    return;
  }
  word_ = std::move(pipe.writer);
  ::setsid();  // cannot fail: a new process leads no process group
  put(input.get(), STDIN_FILENO);
  put(output.get(), STDOUT_FILENO);
  put(output.get(), STDERR_FILENO);
}

void Detached::tell(const std::string& word) {
  write_all(word_.get(), word);
  word_.reset();
}

std::string Detached::hear() {
  std::string word;
  char buffer[512];
  ssize_t count = 0;
  while ((count = ::read(word_.get(), buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) word.append(buffer, static_cast<std::size_t>(count));
  }
  if (!word.empty()) return word;
  std::string said;
  for (const std::string& line : rank::last_lines(log_, kDetachedLines)) said += (said.empty() ? "" : "\n  ") + line;
  throw Error("the launcher in the background ended before its task was in the ledger",
              "the end of its log:\n  " + said);
}

namespace {

// Empty: the task needs the plan's number of slots.
std::optional<scheduler::Elastic> elastic_of(const LaunchPlan& plan) {
  const config::Resources& resources = plan.experiment.resources;
  if (!resources.elastic || plan.asked.is_trial || plan.asked.evaluates || plan.asked.mock.any()) return std::nullopt;
  return scheduler::Elastic{.min = resources.elastic->min,
                            .wanted = resources.slots_per_trial,
                            .max = resources.most_slots(),
                            .grow_after = plan.cluster.cluster.scheduler.grow_after};
}

}  // namespace

scheduler::TaskRequest task_request(const LaunchPlan& plan, const std::filesystem::path& run_dir) {
  return {.name = plan.experiment.name,
          .priority = plan.experiment.resources.priority,
          .slots = plan.request,
          .elastic = elastic_of(plan),
          .max_slots = plan.experiment.resources.max_slots,
          .agents = scheduler::empty_slots(plan.cluster),
          .run_dir = run_dir,
          .placed_by_others = plan.launcher().type == config::LauncherType::kSlurm,
          .can_yield = plan.launcher().type != config::LauncherType::kSlurm && !plan.asked.mock.any(),
          .preemption = plan.cluster.cluster.scheduler.preemption};
}

std::optional<scheduler::Claim> wait_in_queue(Resizing& resizing, const std::filesystem::path& run_dir,
                                              LaunchTask& task, rank::LaunchSignals& signals, rank::EventLog& events,
                                              Detached* detached) {
  bool told = false;
  const auto tell = [&](const std::string& more) {
    if (detached && !std::exchange(told, true)) detached->tell(background(task, run_dir) + more);
  };
  bool first = true;
  const auto say = [&](const scheduler::Waiting& waiting) {
    std::string text = "queued      task " + std::to_string(task.id()) + " waits: " + waiting.reason + "\n";
    if (std::exchange(first, false)) text += advice(waiting);
    rank::print(text);
    tell(text);
    events.write("queued", {{"task", task.id()}, {"behind", waiting.behind}, {"reason", waiting.reason}});
  };
  auto claim = task.wait_for_slots(signals, say, [&](const scheduler::Resize& order) {
    const auto line = [](const std::string& text) { rank::print(text + "\n"); };
    if (resizing.accepts(order, line)) resizing.requeue(text_of(order));
  });
  tell("");
  if (!claim) rank::print("dtrain: interrupted: " + task.cancelled().why + "\n");
  if (claim && claim->empty()) return resizing.plan().first_slots;  // Slurm places the ranks
  return claim;
}

}  // namespace dtrain::launcher
