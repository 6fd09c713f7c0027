#include "launch/launch_queue.h"
#include "dtrain/config/experiment.h"
#include "folder/screen.h"

#include <cstdio>

namespace dtrain::run {
namespace {

// As wide as the row names of render_plan().
constexpr const char* kIndent = "            ";

std::string queued_row(const LaunchTask& task, const scheduler::Waiting& waiting) {
  return "queued      task " + std::to_string(task.id()) + " waits: " + waiting.reason + "\n";
}

// How to avoid the wait the next time.
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

scheduler::TaskRequest task_request(const LaunchPlan& plan, const std::filesystem::path& run_dir) {
  return {.name = plan.experiment.name,
          .priority = plan.experiment.resources.priority,
          .slots = plan.request,
          .max_slots = plan.experiment.resources.max_slots,
          .agents = scheduler::empty_slots(plan.cluster),
          .run_dir = run_dir,
          .placed_by_others = plan.launcher.type == config::LauncherType::kSlurm,
          .can_yield = plan.launcher.type != config::LauncherType::kSlurm && !plan.mock.any(),
          .preemption = plan.cluster.cluster.scheduler.preemption};
}

bool wait_in_queue(LaunchPlan& plan, const std::filesystem::path& run_dir, LaunchTask& task, LaunchSignals& signals,
                   EventLog& events, Detached* detached) {
  bool told = false;
  const auto tell = [&](const std::string& more) {
    if (detached && !std::exchange(told, true)) detached->tell(background(task, run_dir) + more);
  };
  bool first = true;
  const auto claim = task.wait_for_slots(signals, [&](const scheduler::Waiting& waiting) {
    std::string text = queued_row(task, waiting);
    if (std::exchange(first, false)) text += advice(waiting);
    print(text);
    tell(text);
    events.write("queued", {{"task", task.id()}, {"behind", waiting.behind}, {"reason", waiting.reason}});
  });
  tell("");
  if (!claim) {
    print("dtrain: interrupted: " + task.cancelled().why + "\n");
    return false;
  }
  if (!claim->empty()) assign_slots(plan, *claim);  // empty: Slurm places the ranks
  return true;
}

}  // namespace dtrain::run
