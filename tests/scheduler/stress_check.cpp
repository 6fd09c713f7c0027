#include <algorithm>
#include <fstream>

#include "sqlite.h"
#include "stress.h"

namespace dtrain::scheduler::stress {
namespace {

// The agents that place() uses for some state of what is free: by trying all of them.
const std::set<std::string>& usable(const TaskRequest& request) {
  static std::map<std::string, std::set<std::string>> known;
  const SlotRequest& slots = request.slots;
  const std::string key =
      std::to_string(slots.slots) + (slots.is_single_node ? "s" : "") + (slots.allow_heterogeneous_fits ? "h" : "");
  if (known.contains(key)) return known.at(key);
  std::vector<AgentSlots> agents = request.agents;
  std::set<std::string>& result = known[key];
  const auto try_from = [&](auto&& self, std::size_t index) -> void {
    if (index == agents.size()) {
      for (const AgentShare& share : place(agents, slots).value_or(Placement())) result.insert(share.agent);
      return;
    }
    for (int free = 0; free <= agents[index].slots; ++free) {
      agents[index].free = free;
      self(self, index + 1);
    }
  };
  try_from(try_from, 0);
  return result;
}

unsigned seed_of(const Task& task) {
  return static_cast<unsigned>(std::stoul(std::filesystem::path(task.run_dir).filename()));
}

// What happened, in the order in which it was written down, without asking the scheduler about any of it.
class Replay {
 public:
  explicit Replay(Findings& findings) : findings_(findings) {}

  void change(const Task& task, TaskState state) {
    const TaskRequest request = request_of_launcher(seed_of(task));
    if (state == TaskState::kQueued) queue_[{task.priority, task.id}] = request;
    if (state == TaskState::kStarting) start(task, request);
    if (!has_ended(state)) return;
    queue_.erase({task.priority, task.id});
    for (const ClaimedShare& share : task.claim) {
      for (const int slot : share.slots) held_.erase({share.agent, slot});
    }
    if (task.started) in_use_[task.name] -= task.slots;
  }

 private:
  void start(const Task& task, const TaskRequest& request) {
    const std::string who = "task " + std::to_string(task.id);
    queue_.erase({task.priority, task.id});
    int given = 0;
    for (const ClaimedShare& share : task.claim) {
      for (const int slot : share.slots) {
        ++given;
        if (!held_.insert({share.agent, slot}).second)
          problem(who + " got a slot of " + share.agent + " that was taken");
      }
      // max_slots counts what those of the same name hold, and what those further ahead will hold. Who waits only for
      // that reserves nothing.
      int promised = 0;
      for (const auto& [key, other] : queue_) {
        if (key > std::pair(task.priority, task.id)) break;
        const int counted = in_use_[other.name] + (other.name == task.name ? promised : 0);
        if (other.max_slots && counted + other.slots.slots > *other.max_slots) continue;
        if (other.name == task.name && request.max_slots) promised += other.slots.slots;
        if (usable(other).contains(share.agent)) {
          problem(who + " was started before task " + std::to_string(key.second) + ", on " + share.agent);
        }
      }
    }
    in_use_[task.name] += task.slots;
    if (given != request.slots.slots) problem(who + " got " + std::to_string(given) + " slots");
    if (request.max_slots && in_use_[task.name] > *request.max_slots) problem(who + " is beyond max_slots");
  }
  void problem(const std::string& text) { findings_.problems.push_back(text); }

  Findings& findings_;
  std::map<std::pair<int, TaskId>, TaskRequest> queue_;
  std::set<std::pair<std::string, int>> held_;
  std::map<std::string, int> in_use_;
};

}  // namespace

Findings check(const Arena& arena, const std::vector<Launcher>& launchers) {
  Findings findings;
  const auto problem = [&](const std::string& text) { findings.problems.push_back(text); };
  const SystemClock clock;
  std::map<TaskId, Task> tasks;
  std::multimap<unsigned, TaskId> of_launcher;
  for (Task& task : Ledger::open(arena.state(), clock).list()) {
    ++findings.tasks;
    findings.done += task.state == TaskState::kDone;
    findings.ended_after_kill += task.state == TaskState::kFailed || task.state == TaskState::kInterrupted;
    if (!has_ended(task.state)) problem("task " + std::to_string(task.id) + " never ended");
    of_launcher.emplace(seed_of(task), task.id);
    tasks[task.id] = std::move(task);
  }
  for (const Launcher& launcher : launchers) {
    const auto count = of_launcher.count(launcher.seed);
    const std::string who = "launcher " + std::to_string(launcher.seed);
    if (count > 1 || (count == 0 && !launcher.killed)) problem(who + " has " + std::to_string(count) + " tasks");
    if (count != 1) continue;
    const Task& task = tasks.at(of_launcher.find(launcher.seed)->second);
    const bool done = task.state == TaskState::kDone;
    if (!launcher.killed && (!done || launcher.exit_code != 0)) {
      problem(who + " was not killed, but its task " + to_string(task.state) + ": " + task.reason);
    }
  }

  Database database(arena.state() / "ledger.db", 1000);
  if (const auto left = database.value("SELECT count(*) FROM claims"); left > 0) {
    problem(std::to_string(left) + " slots are still taken");
  }
  Replay replay(findings);
  Statement row = database.prepare("SELECT task, state FROM changes ORDER BY rowid");
  while (row.step()) replay.change(tasks.at(row.integer(0)), static_cast<TaskState>(row.integer(1)));
  std::ifstream lines(arena.double_booked());
  for (std::string line; std::getline(lines, line);) problem("two ranks were on slot " + line);
  return findings;
}

}  // namespace dtrain::scheduler::stress
