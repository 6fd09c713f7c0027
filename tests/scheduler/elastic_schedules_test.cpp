// Random schedules of elastic and other tasks in one ledger, with launchers that are played: tasks come, end, crash,
// are paused and resized, and time passes. After every step the ledger is compared with what it promises.
#include <algorithm>
#include <random>
#include <set>

#include "free_slots.h"
#include "ledger_fixture.h"
#include "queue.h"

namespace dtrain::scheduler {
namespace {

constexpr int kSchedules = 1000;
constexpr auto kGrowAfter = 60s;

struct Played {
  TaskRequest request;  // as submitted
  TaskState state = TaskState::kQueued;
  bool is_paused = false;
  int limit = 0;                // the most slots, by hand or by its request
  bool is_fixed = false;        // it has refused an order, and is not elastic any more
  Claim claim;                  // that it holds; of a queued task those that it keeps
  std::optional<Resize> order;  // that it carries out
  Claim keeps;                  // with it
  Nanoseconds runs_since{0};

  bool is_elastic() const { return request.elastic && !is_fixed; }
  bool is_running() const { return state == TaskState::kStarting || state == TaskState::kRunning; }
  // As the queue judges it now.
  TaskRequest now() const {
    TaskRequest result = request;
    if (is_elastic()) result.elastic->max = limit;
    if (is_fixed) result.elastic.reset();
    return result;
  }
};

class Schedule : public LedgerTest {
 protected:
  int up_to(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }
  bool one_in(int n) { return up_to(n - 1) == 0; }

  void begin(unsigned seed) {
    random_.seed(seed);
    tasks_.clear();
    agents_.clear();
    const int agents = one_in(2) ? 1 : 2 + up_to(1);
    for (int i = 0; i < agents; ++i) {
      const int slots = 2 + up_to(3);
      agents_.push_back({.id = std::string(1, static_cast<char>('a' + i)), .slots = slots, .free = slots});
    }
    preemption_ = !one_in(6);
  }

  int all_slots() const {
    int all = 0;
    for (const AgentSlots& agent : agents_) all += agent.slots;
    return all;
  }

  void submit(Ledger& ledger) {
    Played task{.request = {.name = one_in(4) ? "limited" : "test"}};
    TaskRequest& request = task.request;
    request.priority = 10 * (1 + up_to(3));
    request.agents = agents_;
    request.slots.slots = 1 + up_to(all_slots() - 1);
    request.slots.is_single_node = one_in(3);
    request.can_yield = !one_in(10);
    request.preemption = preemption_ && !one_in(10);
    if (request.can_yield && !one_in(4)) {
      const int wanted = request.slots.slots;
      request.elastic = Elastic{1 + up_to(wanted - 1), wanted, wanted + up_to(2)};
    }
    if (request.name == "limited") request.max_slots = request.most() + up_to(2);
    if (!place(agents_, request.slots)) return;
    task.limit = request.most();
    tasks_.emplace(ledger.submit(request), task);
  }

  // In the order of the queue, without those that keep slots.
  std::vector<QueuedTask> waiting() {
    std::vector<QueuedTask> result;
    now_.clear();
    for (auto& [id, task] : tasks_) {
      if (task.state != TaskState::kQueued || task.is_paused || !task.claim.empty()) continue;
      result.push_back({id, &now_.emplace(id, task.now()).first->second});
    }
    std::stable_sort(result.begin(), result.end(), [](const QueuedTask& a, const QueuedTask& b) {
      return std::pair(a.request->priority, a.id) < std::pair(b.request->priority, b.id);
    });
    return result;
  }

  HeldSlots held() {
    HeldSlots result;
    for (const auto& [id, task] : tasks_) {
      for (const SlotKey& key : keys_of(task.claim)) {
        const auto [place, is_new] =
            result[key.name].emplace(key.index, Holder{id, task.request.name, slots_of(task.claim)});
        EXPECT_TRUE(is_new) << "slot " << key.index << " of " << key.name << " belongs to " << place->second.task
                            << " and to " << id;
      }
    }
    return result;
  }

  static std::set<SlotKey> set_of(const Claim& claim) {
    const std::vector<SlotKey> keys = keys_of(claim);
    return {keys.begin(), keys.end()};
  }

  // Slots that the task gets beside its own must be of no use to these tasks.
  void expect_of_no_use(const Claim& claim, const Claim& own, std::span<const QueuedTask> before,
                        const std::string& who) {
    const std::set<SlotKey> mine = set_of(own);
    for (const QueuedTask& task : before) {
      if (task.request->max_slots) continue;  // its limit may already be promised to others
      const std::set<std::string> usable = usable_names(*task.request);
      for (const SlotKey& key : keys_of(claim)) {
        EXPECT_TRUE(mine.contains(key) || !usable.contains(key.name)) << who << " passes " << task.id;
      }
    }
  }

  // A queued task looks whether it may start.
  void look(Ledger& ledger, TaskId id) {
    Played& task = tasks_.at(id);
    const std::string who = "task " + std::to_string(id);
    const auto asked_before = asked();
    const std::vector<QueuedTask> before = waiting();
    const std::optional<Claim> claim = ledger.try_claim(id);
    if (!claim) {
      EXPECT_TRUE(task.claim.empty() || task.is_paused) << who << " does not go on with the slots that it keeps";
      check_asked(id, asked_before);
      return;
    }
    ASSERT_FALSE(task.is_paused);
    const int slots = slots_of(*claim);
    const TaskRequest now = task.now();
    if (!task.claim.empty()) {
      EXPECT_GE(slots, slots_of(task.claim)) << who << " goes on with fewer than it keeps";
      if (task.order->slots == slots_of(task.claim)) {
        EXPECT_EQ(*claim, task.claim) << who << " was asked for the others";
      }
      expect_of_no_use(*claim, task.claim, before, who);
    } else {
      const auto self = std::ranges::find(before, id, &QueuedTask::id);
      ASSERT_NE(self, before.end());
      expect_of_no_use(*claim, {}, std::span(before.begin(), self), who);
      if (slots > now.wanted())
        expect_of_no_use(*claim, {}, std::span(self + 1, before.end()), who + " takes more and");
    }
    EXPECT_GE(slots, task.is_fixed ? 1 : now.least()) << who;
    EXPECT_LE(slots, std::max(task.is_fixed ? all_slots() : now.most(), slots_of(task.claim))) << who;
    if (!task.request.elastic) {
      EXPECT_EQ(slots, task.request.slots.slots) << who;
    }
    task.claim = *claim;
    task.order.reset();
    task.state = TaskState::kStarting;
    const HeldSlots held_now = held();  // no slot twice
    if (task.request.max_slots) {
      EXPECT_LE(in_use_by_name(held_now, task.request.name).slots, most_of_name(task.request.name)) << who;
    }
    ++starts_;
  }

  int most_of_name(const std::string& name) const {
    int most = 0;
    for (const auto& [id, task] : tasks_) {
      if (task.request.name == name && !task.claim.empty()) most = std::max(most, task.request.max_slots.value_or(0));
    }
    return most;
  }

  struct Asked {
    std::optional<Resize> resize;
    std::string yield;
  };
  std::map<TaskId, Asked> asked() {
    std::map<TaskId, Asked> result;
    Statement row = raw_->prepare("SELECT id, resize_to, resize_why, yield_to, keeps FROM tasks WHERE state IN (1, 2)");
    while (row.step()) {
      Asked& one = result[row.integer(0)];
      if (row.integer(1) != 0) one.resize = Resize{static_cast<int>(row.integer(1)), row.text(2)};
      if (row.integer(3) != 0 && row.view(4).empty()) one.yield = std::to_string(row.integer(3));
    }
    return result;
  }

  // What a waiting task has asked of others since: no task that is as urgent, none that cannot yield, and on one agent
  // no slot too many, and no task stops that could shrink.
  void check_asked(TaskId id, const std::map<TaskId, Asked>& before) {
    const Played& waits = tasks_.at(id);
    int gives = 0, could_give = 0, keeps_coming = 0;
    bool has_stopped = false;
    bool is_new = false;
    for (const auto& [other, now] : asked()) {
      const Played& task = tasks_.at(other);
      const Asked& was = before.at(other);
      const bool asked_now = now.resize != was.resize || now.yield != was.yield;
      const bool may_be_asked = task.request.can_yield && task.request.preemption && waits.request.preemption &&
                                task.request.priority > waits.request.priority && !task.is_paused;
      if (asked_now) {
        is_new = true;
        EXPECT_TRUE(may_be_asked) << "task " << id << " asks task " << other;
        if (now.resize && task.is_elastic()) {
          EXPECT_GE(now.resize->slots, task.request.elastic->min);
          EXPECT_LT(now.resize->slots, slots_of(task.claim));
          gives += slots_of(task.claim) - now.resize->slots;
          ++shrinks_;
        } else {
          has_stopped = true;
          ++stops_;
        }
      }
      if (may_be_asked && task.is_elastic() && (asked_now || (!now.resize && now.yield.empty()))) {
        could_give += slots_of(task.claim) - task.request.elastic->min;
      } else if (now.resize || !now.yield.empty() || task.is_paused) {
        keeps_coming += 1;  // it will give slots that were asked for before
      }
    }
    if (!is_new || agents_.size() > 1 || keeps_coming > 0 || waits.request.max_slots) return;
    for (const auto& [other, task] : tasks_) {
      if (task.state == TaskState::kStopping) return;
    }
    int free = all_slots();
    for (const auto& [name, slots] : held()) free -= static_cast<int>(slots.size());
    const TaskRequest request = waits.now();
    if (has_stopped) {
      EXPECT_LT(free + could_give, request.least()) << "task " << id << " stops tasks where others could shrink";
    } else {
      EXPECT_EQ(gives, std::min(could_give, request.wanted() - free)) << "task " << id << " asks for too much";
    }
  }

  // The launcher of a task with slots reads its orders.
  void read_orders(Ledger& ledger, TaskId id) {
    Played& task = tasks_.at(id);
    if (task.state == TaskState::kStarting) {
      ledger.set_state(id, TaskState::kRunning);
      task.state = TaskState::kRunning;
      task.runs_since = clock_.monotonic();
      return;
    }
    const std::vector<QueuedTask> before = waiting();
    const auto asked_before = asked().at(id);
    const Orders orders = ledger.orders(id);
    const auto asked_now = asked().at(id);
    if (asked_now.resize && asked_now.resize != asked_before.resize) {
      const int slots = asked_now.resize->slots;
      if (slots > slots_of(task.claim)) {
        EXPECT_GE(clock_.monotonic() - task.runs_since, kGrowAfter) << "task " << id << " grows at once";
        EXPECT_LE(slots, task.limit);
        EXPECT_TRUE(task.is_elastic());
        ++growths_;
      } else {
        EXPECT_GT(slots_of(task.claim), task.limit) << "task " << id << " shrinks for nobody";
      }
    }
    if (!orders.yield.empty()) {
      ledger.set_state(id, TaskState::kStopping, orders.yield);
      task.state = TaskState::kStopping;
    } else if (orders.resize) {
      if (one_in(20)) {
        ledger.refuse_slots(id, orders.resize->slots, "too large");
        task.is_fixed = task.request.elastic.has_value();
        return;
      }
      task.order = orders.resize;
      Statement row = raw_->prepare("SELECT keeps FROM tasks WHERE id = ?1");
      row.bind(id).step();
      task.keeps = kept_of(row.text(0), task.claim);
      ledger.set_state(id, TaskState::kStopping, orders.resize->why);
      task.state = TaskState::kStopping;
    }
  }

  // Reads the part of a claim that the ledger has noted, such as "a:0,1;b:0".
  static Claim kept_of(const std::string& text, const Claim& claim) {
    Claim kept;
    for (const ClaimedShare& share : claim) {
      ClaimedShare part{.agent = share.agent};
      const auto at = text.find(share.agent + ":");
      if (at == std::string::npos) continue;
      const std::string slots = text.substr(at + 2, text.find(';', at) - at - 2);
      for (const int slot : share.slots) {
        if (("," + slots + ",").find("," + std::to_string(slot) + ",") != std::string::npos) part.slots.push_back(slot);
      }
      kept.push_back(part);
    }
    return kept;
  }

  void ranks_are_gone(Ledger& ledger, TaskId id) {
    Played& task = tasks_.at(id);
    if (task.order) {
      TaskRequest resized = task.request;
      resized.slots.slots = task.order->slots;
      ledger.requeue(id, task.order->why, &resized);
      if (!task.request.elastic) task.request.slots.slots = task.order->slots;
    } else {
      ledger.requeue(id, "yields");
    }
    const bool keeps = task.order && !task.is_paused;
    if (keeps) {
      const std::set<SlotKey> own = set_of(task.claim);
      for (const SlotKey& key : keys_of(task.keeps)) EXPECT_TRUE(own.contains(key)) << "it keeps what it had";
      if (!task.keeps.empty()) {
        EXPECT_EQ(slots_of(task.keeps), std::min(task.order->slots, slots_of(task.claim))) << "it gives what was asked";
      }
    }
    task.claim = keeps ? task.keeps : Claim();
    if (task.claim.empty()) task.order.reset();
    task.keeps.clear();
    task.state = TaskState::kQueued;
  }

  void end(Ledger& ledger, TaskId id, TaskState state) {
    ledger.end(id, state, "", 0);
    tasks_.erase(id);
  }

  void pause_or_activate(Ledger& ledger, TaskId id) {
    Played& task = tasks_.at(id);
    if (!task.request.can_yield) return;
    task.is_paused = !task.is_paused;
    ledger.set_paused(id, task.is_paused);
    if (task.is_paused && task.state == TaskState::kQueued) {
      task.claim.clear();
      task.order.reset();
    }
  }

  void resize(Ledger& ledger, TaskId id) {
    Played& task = tasks_.at(id);
    if (!task.request.elastic) return;
    const int slots = 1 + up_to(task.request.elastic->max);
    const Elastic& elastic = *task.request.elastic;
    if (slots < elastic.min || slots > elastic.max || !largest_claim(task.request, elastic.min, slots, {})) {
      EXPECT_THROW(ledger.request_slots(id, slots, "by hand"), ConfigError);
      return;
    }
    ledger.request_slots(id, slots, "by hand");
    task.limit = slots;
    task.is_fixed = false;
  }

  std::optional<TaskId> any(const std::function<bool(const Played&)>& wanted) {
    std::vector<TaskId> found;
    for (const auto& [id, task] : tasks_) {
      if (wanted(task)) found.push_back(id);
    }
    if (found.empty()) return std::nullopt;
    return found[static_cast<std::size_t>(up_to(static_cast<int>(found.size()) - 1))];
  }

  std::vector<TaskId> ids() const {
    std::vector<TaskId> result;
    for (const auto& [id, task] : tasks_) result.push_back(id);
    return result;
  }

  // Every launcher does what it has to do. Returns true if a task has changed.
  bool everybody_acts(Ledger& ledger) {
    bool changed = false;
    for (const TaskId id : ids()) {
      const TaskState before = tasks_.at(id).state;
      act(ledger, id);
      changed |= tasks_.at(id).state != before;
    }
    return changed;
  }

  void act(Ledger& ledger, TaskId id) {
    switch (tasks_.at(id).state) {
      case TaskState::kQueued:
        return look(ledger, id);
      case TaskState::kStopping:
        return ranks_are_gone(ledger, id);
      default:
        return read_orders(ledger, id);
    }
  }

  // Something happens, and then some of the launchers act.
  void step(Ledger& ledger) {
    const auto running = [](const Played& task) { return task.state == TaskState::kRunning; };
    const auto whatever = [](const Played&) { return true; };
    const int kind = up_to(99);
    clock_.elapsed += 1s;
    if (kind < 30) {
      if (tasks_.size() < 6) submit(ledger);
    } else if (kind < 37) {
      if (const auto id = any(running)) end(ledger, *id, TaskState::kDone);
    } else if (kind < 40) {
      if (const auto id = any(whatever)) end(ledger, *id, TaskState::kFailed);
    } else if (kind < 45) {
      if (const auto id = any(whatever)) pause_or_activate(ledger, *id);
    } else if (kind < 52) {
      if (const auto id = any(whatever)) resize(ledger, *id);
    } else {
      clock_.elapsed += std::chrono::seconds(5 + up_to(60));
      renew_leases();
    }
    for (const TaskId id : ids()) {
      if (!one_in(4)) act(ledger, id);
    }
  }

  // All launchers are alive.
  void renew_leases() {
    raw_->prepare("UPDATE tasks SET lease = ?1 WHERE state < 4").bind((clock_.monotonic() + 3600s).count()).run();
  }

  // Nobody comes or goes any more: the changes end, and what is left free is of no use to an elastic task.
  void settle(Ledger& ledger) {
    for (auto& [id, task] : tasks_) {
      if (task.is_paused) pause_or_activate(ledger, id);
    }
    bool changes = true;
    for (int round = 0; round < 40 && changes; ++round) {
      changes = false;
      for (int look = 0; look < 2; ++look) {
        clock_.elapsed += 61s;
        renew_leases();
        changes |= everybody_acts(ledger);
      }
    }
    EXPECT_FALSE(changes) << "tasks change for ever";
    if (agents_.size() > 1 || !waiting().empty()) return;
    int free = all_slots();
    for (const auto& [name, slots] : held()) free -= static_cast<int>(slots.size());
    for (const auto& [id, task] : tasks_) {
      if (!task.is_elastic() || task.request.max_slots) continue;
      EXPECT_TRUE(free == 0 || slots_of(task.claim) == task.limit) << "task " << id << " leaves " << free << " free";
    }
  }

  // Every task has its turn.
  void finish(Ledger& ledger) {
    for (int round = 0; round < 200 && !tasks_.empty(); ++round) {
      clock_.elapsed += 1s;
      renew_leases();
      everybody_acts(ledger);
      if (const auto id = any([](const Played& task) { return task.state == TaskState::kRunning; })) {
        end(ledger, *id, TaskState::kDone);
      }
    }
    for (const auto& [id, task] : tasks_) {
      const Task shown = *ledger.find(id);
      ADD_FAILURE() << "task " << id << " never ends: " << to_string(shown.state) << ", " << shown.slots << " slots, "
                    << (shown.waiting ? shown.waiting->reason : "");
    }
    for (const auto& [id, task] : tasks_) ledger.end(id, TaskState::kFailed, "", 1);
  }

  std::mt19937 random_;
  std::vector<AgentSlots> agents_;
  bool preemption_ = true;
  std::map<TaskId, Played> tasks_;
  std::map<TaskId, TaskRequest> now_;
  std::unique_ptr<Database> raw_;
  int starts_ = 0, shrinks_ = 0, stops_ = 0, growths_ = 0;
};

TEST_F(Schedule, AThousandAtRandomKeepEveryPromise) {
  std::optional<Ledger> ledger;
  for (unsigned seed = 0; seed < kSchedules && !HasFailure(); ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    if (seed % 25 == 0) {  // few tasks in the tables: looks stay quick
      const std::string folder = folder_.path() / ("state-" + std::to_string(seed));
      ledger.emplace(Ledger::open(folder, clock_));
      raw_ = std::make_unique<Database>(folder + "/ledger.db", 1000);
    }
    begin(seed);
    for (int i = 0; i < 20; ++i) step(*ledger);
    settle(*ledger);
    finish(*ledger);
  }
  std::printf("%d starts, %d shrinks, %d stops, %d growths\n", starts_, shrinks_, stops_, growths_);
  EXPECT_GT(shrinks_, 50);
  EXPECT_GT(stops_, 50);
  EXPECT_GT(growths_, 50);
}

}  // namespace
}  // namespace dtrain::scheduler
