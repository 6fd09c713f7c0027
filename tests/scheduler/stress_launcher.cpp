#include <cstdlib>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/scheduler/rank_mark.h"
#include "stress.h"

namespace dtrain::scheduler::stress {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(50);

std::vector<AgentSlots> agents() {
  std::vector<AgentSlots> result;
  for (const auto& [id, slots] : std::map<std::string, int>{{"a", 4}, {"b", 4}, {"c", 2}, {"d", 2}, {"e", 1}}) {
    result.push_back({.id = id, .slots = slots, .free = slots});
  }
  return result;
}

}  // namespace

TaskRequest request_of_launcher(unsigned seed) {
  std::mt19937 random(seed);
  const auto one_of = [&](const std::vector<int>& values) {
    return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
  };
  TaskRequest request{.agents = agents(), .run_dir = std::to_string(seed)};
  do {
    request.slots.slots = one_of({1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 9});
    request.slots.is_single_node = one_of({0, 0, 0, 1}) == 1;
    request.slots.allow_heterogeneous_fits = one_of({0, 1}) == 1;
  } while (!place(request.agents, request.slots));
  request.priority = one_of({10, 42, 42, 42, 90});
  request.name = "free";
  if (request.slots.slots <= 4 && one_of({0, 0, 1}) == 1) {
    request.name = "limited";
    request.max_slots = 4;
  }
  return request;
}

void hold_slot(const Arena& arena, const std::string& agent, int slot) {
  UniqueFd lock(::open(arena.slot(agent, slot).c_str(), O_RDWR | O_CREAT, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    LineAppender(arena.double_booked()).append(agent + ":" + std::to_string(slot));
    std::_Exit(1);
  }
  lock.release();
}

int run_rank(const Arena& arena, const std::string& agent, int slot, int milliseconds) {
  hold_slot(arena, agent, slot);
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return 0;
}

int run_launcher(const Arena& arena, unsigned seed) {
  const SystemClock clock;
  Ledger ledger = Ledger::open(arena.state(), clock);
  const TaskId id = ledger.submit(request_of_launcher(seed));
  std::optional<Claim> claim;
  while (!(claim = ledger.try_claim(id))) {
    if (ledger.orders(id).kills > 0) {
      ledger.end(id, TaskState::kInterrupted, "killed", 130);
      return 130;
    }
    std::this_thread::sleep_for(kPoll);
  }
  std::mt19937 random(seed + 1);
  // Some go on for long after their launcher was killed.
  const int longest = std::uniform_int_distribution<int>(1, 4)(random) == 1 ? 2500 : 200;
  std::vector<Process> ranks;
  for (const ClaimedShare& share : *claim) {
    for (const int slot : share.slots) {
      ProcessOptions options;
      const int milliseconds = std::uniform_int_distribution<int>(10, longest)(random);
      options.command = {executable_path(),           "--rank", arena.folder, share.agent, std::to_string(slot),
                         std::to_string(milliseconds)};
      options.environment = {{kRankMark, rank_mark(::getpid())}};
      ranks.push_back(Process::start(options));
      ledger.add_process(id, "rank " + std::to_string(ranks.size() - 1), ranks.back().pid());
    }
  }
  ledger.set_state(id, TaskState::kRunning);
  bool good = true;
  for (Process& rank : ranks) good = rank.wait().success() && good;
  ledger.end(id, good ? TaskState::kDone : TaskState::kFailed, "", good ? 0 : 1);
  return good ? 0 : 1;
}

}  // namespace dtrain::scheduler::stress
