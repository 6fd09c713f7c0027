// Elastic tasks, which go on with fewer slots for others, and with more when slots are free.
#include <algorithm>
#include <tuple>

#include "free_slots.h"

namespace dtrain::scheduler {
namespace {

// Returns the claims of `slots` that the task can keep of its own: on fewer agents or on more, as its request can be
// placed there.
std::vector<Claim> parts_of(const RunningTask& task, int slots) {
  std::vector<Claim> parts;
  const auto add = [&](const Claim& own) {
    HeldSlots others;
    hold_all_but(own, *task.request, others);
    auto part = largest_claim(*task.request, slots, slots, others);
    if (part && std::find(parts.begin(), parts.end(), *part) == parts.end()) parts.push_back(*std::move(part));
  };
  add(task.claim);
  for (std::size_t i = 0; i < task.claim.size() && task.claim.size() > 1; ++i) {
    add({task.claim[i]});
    Claim others = task.claim;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    add(others);
  }
  return parts;
}

// The search of choose_yields(): what each task keeps of its slots, and how many the waiting task gets then.
class Yields {
 public:
  Yields(std::span<const QueuedTask> queue, const HeldSlots& held, std::span<const RunningTask> running)
      : queue_(queue), held_(held) {
    for (const RunningTask& task : running) {
      if (task.is_leaving) {
        kept_[task.id] = {};
      } else if (task.keeps) {
        kept_[task.id] = *task.keeps;
      } else if (task.can_yield && task.priority > queue.back().request->priority) {
        candidates_.push_back(&task);
      }
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const RunningTask* a, const RunningTask* b) {
      return std::tuple(a->priority, a->started, a->id) > std::tuple(b->priority, b->started, b->id);
    });
  }

  int slots() const {
    const Verdict verdict = judge(queue_, held_after(held_, kept_));
    return verdict.claim ? slots_of(*verdict.claim) : 0;
  }

  // Lets each elastic task keep as little as it may.
  void shrink_all() {
    for (const RunningTask* task : candidates_) {
      int most = -1;
      Claim best;
      for (const Claim& part : parts_of_fewest(*task)) {
        kept_[task->id] = part;
        if (const int slots = this->slots(); slots > most) {
          most = slots;
          best = part;
        }
      }
      if (most >= 0) kept_[task->id] = best;
    }
  }
  // Stops one task after the other until the waiting one gets `goal` slots.
  void stop_until(int goal) {
    for (const RunningTask* task : candidates_) {
      if (slots() >= goal) return;
      kept_[task->id] = {};
    }
  }
  // Gives back what is not needed for `goal` slots, first to the tasks that should be asked last.
  void give_back(int goal) {
    for (std::size_t i = candidates_.size(); i-- > 0;) give_back(*candidates_[i], goal);
  }

  std::vector<Yield> asked() const {
    std::vector<Yield> yields;
    for (const RunningTask* task : candidates_) {
      if (const auto kept = kept_.find(task->id); kept != kept_.end()) yields.push_back({task->id, kept->second});
    }
    return yields;
  }

 private:
  static std::vector<Claim> parts_of_fewest(const RunningTask& task) {
    if (!task.is_elastic()) return {};
    for (int slots = task.request->least(); slots < slots_of(task.claim); ++slots) {
      if (auto parts = parts_of(task, slots); !parts.empty()) return parts;
    }
    return {};
  }

  void give_back(const RunningTask& task, int goal) {
    const auto found = kept_.find(task.id);
    if (found == kept_.end()) return;
    const Claim asked = found->second;
    kept_.erase(found);
    if (slots() >= goal) return;
    const int fewest = asked.empty() ? (task.is_elastic() ? task.request->least() : 0) : slots_of(asked) + 1;
    for (int slots = slots_of(task.claim) - 1; task.is_elastic() && slots >= fewest; --slots) {
      for (Claim& part : parts_of(task, slots)) {
        kept_[task.id] = std::move(part);
        if (this->slots() >= goal) return;
      }
    }
    kept_[task.id] = asked;
  }

  std::span<const QueuedTask> queue_;
  const HeldSlots& held_;
  std::vector<const RunningTask*> candidates_;  // the one to ask first is the first
  std::map<TaskId, Claim> kept_;                // of tasks that are asked, now or earlier
};

// Returns the claim with the most slots that the task may have: its own slots, and free ones of agents that are not
// reserved. Empty: it gets no more than its own.
std::optional<Claim> larger_than_own(const RunningTask& task, const HeldSlots& held,
                                     const std::set<std::string>& reserved) {
  const TaskRequest& request = *task.request;
  const int own = slots_of(task.claim);
  int most = request.most();
  if (request.max_slots) {
    most = std::min(most, *request.max_slots - in_use_by_name(held, request.name).slots + own);
  }
  HeldSlots others = held_after(held, {{task.id, {}}});
  hold_all_but(task.claim, request, others, &reserved);
  return largest_claim(request, own + 1, most, others);
}

}  // namespace

std::vector<Yield> choose_yields(std::span<const QueuedTask> queue, const HeldSlots& held,
                                 std::span<const RunningTask> running) {
  const TaskRequest& request = *queue.back().request;
  Yields yields(queue, held, running);
  const int now = yields.slots();
  if (now >= request.wanted()) return {};
  Yields stops = yields;
  yields.shrink_all();
  if (const int shrunk = std::min(yields.slots(), request.wanted()); shrunk > now) {
    yields.give_back(shrunk);
    return yields.asked();
  }
  if (now > 0) return {};
  stops.shrink_all();
  stops.stop_until(request.least());
  if (stops.slots() < request.least()) return {};
  stops.give_back(request.least());
  return stops.asked();
}

std::optional<Claim> part_of(const RunningTask& task, int slots) {
  std::vector<Claim> parts = parts_of(task, slots);
  return parts.empty() ? std::nullopt : std::optional(std::move(parts.front()));
}

std::optional<Claim> larger_claim(TaskId id, std::span<const QueuedTask> waiting, const HeldSlots& held,
                                  std::span<const RunningTask> running) {
  std::set<std::string> reserved;
  for (const QueuedTask& task : waiting) {
    const TaskRequest& request = *task.request;
    const bool over_limit =
        request.max_slots && in_use_by_name(held, request.name).slots + request.least() > *request.max_slots;
    if (!over_limit) reserved.merge(usable_names(request));
  }
  std::vector<const RunningTask*> growing;
  for (const RunningTask& task : running) {
    if (task.is_elastic() && !task.is_leaving) growing.push_back(&task);
  }
  std::sort(growing.begin(), growing.end(), [](const RunningTask* a, const RunningTask* b) {
    return std::tuple(a->priority, a->id) < std::tuple(b->priority, b->id);
  });
  for (const RunningTask* task : growing) {
    std::optional<Claim> larger = larger_than_own(*task, held, reserved);
    if (task->id == id) return larger;
    if (larger) reserved.merge(usable_names(*task->request));
  }
  return std::nullopt;
}

}  // namespace dtrain::scheduler
