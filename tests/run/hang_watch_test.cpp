// HangWatch over simulated runs: no rank that gets on is taken for one that hangs, and each one that hangs is found.
#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "launch/hang_watch.h"

namespace dtrain::launcher {
namespace {

using profile::Phase;
using std::chrono::milliseconds;
using std::chrono::seconds;

class SetClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now; }
  Nanoseconds now{seconds(1000)};
};

// One piece of a rank's work: how long it takes, and what the rank shows meanwhile.
struct Piece {
  Phase phase = Phase::kOther;
  Nanoseconds takes{0};
  bool meets = false;  // then waits until all ranks are there
  bool in_batch = true;
};

// Seeded ranks: steps of some length with noise and stragglers, a slow first step, slow first batches of epochs,
// validations, checkpoints of one rank.
class SimulatedRun {
 public:
  explicit SimulatedRun(std::uint64_t seed) : random_(seed) {
    const auto pick = [&](auto... choices) {
      const std::array all{choices...};
      return all[random_() % all.size()];
    };
    ranks.resize(pick(2, 3, 4, 8));
    step_ = milliseconds(pick(5, 50, 400, 3000));
    compiles_ = seconds(pick(0, 5, 60));
    validates_ = seconds(pick(1, 10, 30));
    saves_ = seconds(pick(0, 10, 40));
    reports_ = pick(1, 10);
    epoch_ = pick(7, 20, 1000);
    straggles_ = pick(1.0, 1.5, 4.0);
    hesitates_ = pick(1.0, 3.0, 8.0);
  }

  struct Rank {
    RankSight sight;
    std::vector<Piece> pieces;  // the rest of its batch, the next one last
    Nanoseconds left{0};
    bool arrived = false;  // where all ranks meet
    bool hangs = false;
    Nanoseconds arrived_at{0};
  };

  void advance(Nanoseconds time) {
    for (Nanoseconds done{0}; done < time;) {
      Nanoseconds next = time - done;
      for (Rank& rank : ranks) {
        if (rank.pieces.empty()) begin_batch(rank);
        if (!rank.arrived && !holds(rank)) next = std::min(next, std::max(rank.left, Nanoseconds(milliseconds(1))));
      }
      done += next;
      now_ += next;
      for (Rank& rank : ranks) {
        if (rank.arrived || holds(rank)) continue;
        rank.left -= next;
        if (rank.left > Nanoseconds{0}) continue;
        if (rank.pieces.back().meets) {
          rank.arrived = true;
          rank.arrived_at = now_;
          rank.sight.phase = Phase::kAllreduceWait;
          ++rank.sight.moves;
        } else {
          leave_piece(rank);
        }
      }
      const bool all = std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.arrived; });
      for (Rank& rank : ranks) {
        rank.sight.waits = rank.arrived && now_ - rank.arrived_at > milliseconds(250);
        if (!all || deadlock) continue;
        rank.arrived = false;
        leave_piece(rank);
      }
    }
  }

  std::vector<RankSight> sights() const {
    std::vector<RankSight> all;
    for (const Rank& rank : ranks) all.push_back(rank.sight);
    return all;
  }
  Nanoseconds step() const { return step_; }

  std::vector<Rank> ranks;
  bool deadlock = false;  // where all ranks meet, none goes on

 private:
  static bool holds(const Rank& rank) { return rank.hangs || rank.sight.stopped; }

  void begin_batch(Rank& rank) {
    RankSight& sight = rank.sight;
    if (sight.first_batch < 0)
      sight.first_batch = sight.batch = 41;
    else
      ++sight.batch;
    const std::int64_t done = sight.batch - sight.first_batch;
    const bool is_last = &rank == &ranks.back(), is_first = &rank == &ranks.front();
    if (done % epoch_ == 0) sight.epochs_first = sight.batch;
    std::uniform_real_distribution<double> noise(0.8, hesitates_);
    const auto part = [&](double share) {
      return Nanoseconds(static_cast<std::int64_t>(static_cast<double>(step_.count()) * share * noise(random_) *
                                                   (is_last ? straggles_ : 1)));
    };
    const Nanoseconds compile = done < 2 ? compiles_ / (is_last ? 1 : 2) : Nanoseconds{0};
    const Nanoseconds load = done % epoch_ == 0 ? Nanoseconds(seconds(is_first ? 20 : 1)) : part(0.05);
    rank.pieces = {{Phase::kDataloaderNext, load},
                   {Phase::kForward, part(0.3) + compile},
                   {Phase::kBackward, part(0.6)},
                   {Phase::kOptimizerStep, part(0.05), true}};
    if (done > 0 && done % 50 == 0) {
      for (int i = 0; i < reports_; ++i) rank.pieces.push_back({Phase::kValidation, validates_ / reports_});
      if (is_last) rank.pieces.back().takes += validates_;
      rank.pieces.push_back({Phase::kValidation, milliseconds(1), true});
    }
    if (done > 0 && done % 30 == 0) {
      rank.pieces.push_back({Phase::kCheckpoint, is_first ? Nanoseconds(saves_) : milliseconds(1)});
    }
    rank.pieces.push_back({Phase::kOther, milliseconds(1), false, false});
    std::reverse(rank.pieces.begin(), rank.pieces.end());
    enter_piece(rank);
  }
  void enter_piece(Rank& rank) {
    rank.left = rank.pieces.back().takes;
    rank.sight.phase = rank.pieces.back().phase;
    rank.sight.in_batch = rank.pieces.back().in_batch;
    ++rank.sight.moves;
  }
  void leave_piece(Rank& rank) {
    rank.pieces.pop_back();
    if (rank.pieces.empty())
      begin_batch(rank);
    else
      enter_piece(rank);
  }

  std::mt19937_64 random_;
  Nanoseconds now_{0}, step_, compiles_, validates_, saves_;
  std::int64_t epoch_ = 0;
  int reports_ = 1;  // pieces of a validation
  double straggles_ = 1, hesitates_ = 1;
};

constexpr Nanoseconds kLook = milliseconds(250);

// Runs on until the watch finds something; empty: it has found nothing within `time`.
std::optional<Hang> watch(SimulatedRun& run, HangWatch& watch, SetClock& clock, Nanoseconds time) {
  for (const Nanoseconds until = clock.now + time; clock.now < until;) {
    run.advance(kLook);
    clock.now += kLook;
    if (auto hang = watch.look(run.sights())) return hang;
  }
  return std::nullopt;
}

TEST(HangWatch, TakesNoRankForOneThatHangsInTwoHundredRuns) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SetClock clock;
    SimulatedRun run(seed);
    HangWatch hangs({}, clock);
    EXPECT_FALSE(watch(run, hangs, clock, seconds(400)));
    EXPECT_GT(run.ranks.front().sight.batch, 43);
  }
}

TEST(HangWatch, FindsEachRankThatHangsInTwoHundredRuns) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SetClock clock;
    SimulatedRun run(seed);
    HangWatch hangs({}, clock);
    const auto victim = seed % run.ranks.size();
    const RankSight& sight = run.ranks[victim].sight;
    const auto may_hang = [&] {
      return sight.in_batch && sight.phase != Phase::kCheckpoint && sight.phase != Phase::kAllreduceWait;
    };
    while (sight.batch < 60 || !may_hang()) {
      ASSERT_FALSE(watch(run, hangs, clock, sight.batch < 60 ? seconds(100) : kLook));
    }
    const bool all_wait = seed % 5 == 0, stopped = seed % 5 == 1;
    run.deadlock = all_wait;
    run.ranks[victim].hangs = !all_wait && !stopped;
    run.ranks[victim].sight.stopped = stopped;
    const auto found = watch(run, hangs, clock, 60 * hangs.limit() + seconds(200));
    ASSERT_TRUE(found);
    if (all_wait) {
      EXPECT_TRUE(found->ranks.empty());
    } else {
      EXPECT_EQ(found->ranks, std::vector<int>{static_cast<int>(victim)});
    }
  }
}

// Ranks that are in their 100th batch; rank 1 hangs in forward, and rank 0 waits for it.
std::vector<RankSight> hanging_pair() {
  const RankSight sight{.moves = 900, .batch = 100, .first_batch = 1, .epochs_first = 90, .in_batch = true};
  std::vector<RankSight> pair{sight, sight};
  pair[0].phase = Phase::kAllreduceWait;
  pair[0].waits = true;
  pair[1].phase = Phase::kForward;
  return pair;
}

std::optional<Nanoseconds> time_until_found(HangWatch& hangs, SetClock& clock, const std::vector<RankSight>& sights) {
  const Nanoseconds began = clock.now;
  for (int look = 0; look < 4000; ++look, clock.now += kLook) {
    if (hangs.look(sights)) return clock.now - began;
  }
  return std::nullopt;
}

TEST(HangWatch, WaitsAsLongAsGiven) {
  SetClock clock;
  HangWatch given(seconds(3), clock), automatic({}, clock);
  EXPECT_EQ(time_until_found(given, clock, hanging_pair()), seconds(3));
  EXPECT_EQ(time_until_found(automatic, clock, hanging_pair()), seconds(10));
}

TEST(HangWatch, NamesWhoHangsAndWhoIsStopped) {
  SetClock clock;
  HangWatch hangs(seconds(3), clock);
  auto sights = hanging_pair();
  sights.insert(sights.begin(), sights.front());
  time_until_found(hangs, clock, sights);
  EXPECT_EQ(hangs.look(sights)->ranks, std::vector<int>{2});
  // Also where it waited for others itself, and in the first batch.
  HangWatch of_stopped(seconds(3), clock);
  sights[1].stopped = true;
  for (RankSight& sight : sights) sight.first_batch = 100;
  sights[2] = sights[0];
  EXPECT_EQ(time_until_found(of_stopped, clock, sights), seconds(3));
  EXPECT_EQ(of_stopped.look(sights)->ranks, std::vector<int>{1});
}

TEST(HangWatch, DoesNotCountTimeInWhichNothingCouldMove) {
  const auto pair = hanging_pair();
  SetClock clock;
  HangWatch hangs(seconds(3), clock);
  const auto for_looks = [&](int looks, const std::vector<RankSight>& sights) {
    bool found = false;
    for (int look = 0; look < looks; ++look, clock.now += kLook) found |= hangs.look(sights).has_value();
    return found;
  };
  EXPECT_FALSE(for_looks(10, pair));
  clock.now += seconds(100);  // the launcher was stopped, or the machine slept
  EXPECT_FALSE(for_looks(10, pair));
  auto other = pair;
  other[1].traced = true;
  EXPECT_FALSE(for_looks(100, other));  // a debugger
  EXPECT_FALSE(for_looks(10, pair));
  other = pair;
  other[0].stopped = other[1].stopped = true;
  EXPECT_FALSE(for_looks(100, other));  // all of them: somebody means it
  EXPECT_FALSE(for_looks(10, pair));
  other = pair;
  for (int look = 0; look < 100; ++look, clock.now += kLook) {  // without a core
    other[1].in_queue += kLook;
    EXPECT_FALSE(hangs.look(other));
  }
  EXPECT_TRUE(for_looks(20, other));
}

TEST(HangWatch, ARankAloneOrThatNobodyWaitsForDoesNotHang) {
  SetClock clock;
  HangWatch hangs(seconds(3), clock);
  auto sights = hanging_pair();
  sights[0].waits = false;
  sights[0].phase = Phase::kForward;
  EXPECT_FALSE(time_until_found(hangs, clock, sights));
  sights = hanging_pair();
  sights[0].takes_part = false;
  EXPECT_FALSE(time_until_found(hangs, clock, sights));
  sights.erase(sights.begin());
  HangWatch of_one(seconds(3), clock);
  EXPECT_FALSE(time_until_found(of_one, clock, sights));
}

TEST(HangWatch, TheLastRankMayBeStopped) {
  SetClock clock;
  HangWatch hangs(seconds(3), clock);
  auto sights = hanging_pair();
  sights[0].takes_part = false;  // it has got to its end
  sights[1].stopped = true;
  EXPECT_EQ(time_until_found(hangs, clock, sights), seconds(3));
  EXPECT_EQ(hangs.look(sights)->ranks, std::vector<int>{1});
  sights[1].takes_part = false;
  EXPECT_FALSE(hangs.look(sights));
}

}  // namespace
}  // namespace dtrain::launcher
