#include "queue.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/user_ledger.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::board {
namespace {

using scheduler::Task;
using scheduler::TaskState;

constexpr std::size_t kMostEnded = 50;

Json to_json(const Task& task) {
  Json slots = Json::array();
  for (const scheduler::ClaimedShare& share : task.claim) {
    std::vector<std::string> cores;
    for (const std::vector<int>& of_slot : share.cores) cores.push_back(ranges_text(of_slot));
    slots.push_back({{"agent", share.agent}, {"slots", share.slots}, {"gpus", share.gpus}, {"cores", cores}});
  }
  const auto seconds = [](const std::optional<Nanoseconds>& time) { return time ? Json(to_seconds(*time)) : Json(); };
  return {{"id", task.id},
          {"name", task.name},
          {"state", to_string(task.state)},
          {"ended", has_ended(task.state)},
          {"reason", task.waiting ? task.waiting->reason : task.reason},
          {"behind", task.waiting ? Json(task.waiting->behind) : Json::array()},
          {"priority", task.priority},
          {"slots", task.slots},
          {"claim", std::move(slots)},
          {"exit_code", or_null(task.exit_code)},
          {"submitted_s", to_seconds(task.submitted)},
          {"started_s", seconds(task.started)},
          {"ended_s", seconds(task.ended)},
          {"run_dir", task.run_dir}};
}

std::string killed_text(scheduler::Ledger& ledger, scheduler::TaskId id) {
  using scheduler::KillResult;
  switch (ledger.request_kill(id)) {
    case KillResult::kEnded:
      return "its launcher is gone; the processes that it left were killed";
    case KillResult::kHadEnded:
      return "it has already ended";
    case KillResult::kAsked:
      break;
  }
  return ledger.orders(id).kills > 1 ? "its ranks are being killed"
                                     : "it stops after its current step; a second time kills its ranks";
}

}  // namespace

Json list_queue(const Clock& clock) {
  std::vector<Task> open, ended;
  for (Task& task : launcher::open_user_ledger(clock).list()) {
    (has_ended(task.state) ? ended : open).push_back(std::move(task));
  }
  const auto place = [](const Task& task) {
    const bool waits = task.state == TaskState::kQueued || task.state == TaskState::kPaused;
    return waits ? std::tuple(1, task.priority, task.id) : std::tuple(0, 0, task.id);
  };
  std::ranges::sort(open, [&](const Task& a, const Task& b) { return place(a) < place(b); });
  std::ranges::reverse(ended);
  if (ended.size() > kMostEnded) ended.erase(ended.begin() + kMostEnded, ended.end());
  Json tasks = Json::array();
  for (const Task& task : open) tasks.push_back(to_json(task));
  for (const Task& task : ended) tasks.push_back(to_json(task));
  return {{"tasks", std::move(tasks)}};
}

Json act_on_task(const Clock& clock, const std::string& id, const std::string& action) {
  scheduler::Ledger ledger = launcher::open_user_ledger(clock);
  const auto number = to_number<scheduler::TaskId>(id);
  const auto task = number ? ledger.find(*number) : std::nullopt;
  if (!task) throw ConfigError("there is no task " + id);
  std::string text;
  if (action == "kill") {
    text = killed_text(ledger, task->id);
  } else if (action == "pause" || action == "activate") {
    const bool paused = action == "pause";
    if (has_ended(task->state)) {
      text = "it has already ended";
    } else if (!ledger.set_paused(task->id, paused)) {
      text = paused ? "it is paused already" : "it is not paused";
    } else {
      text = paused ? "it saves, gives up its slots, and waits until it is activated" : "it waits in the queue again";
    }
  } else {
    throw ConfigError("the board cannot '" + action + "' a task", "it can kill, pause and activate one");
  }
  return {{"text", "task " + id + ": " + text}};
}

}  // namespace dtrain::board
