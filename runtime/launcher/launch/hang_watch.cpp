#include "launch/hang_watch.h"

#include <algorithm>

namespace dtrain::launcher {
namespace {

using profile::Phase;

constexpr Nanoseconds kShortest = std::chrono::seconds(10);
constexpr Nanoseconds kShortestWhereSlow = std::chrono::minutes(2);
constexpr int kTimes = 20;
constexpr std::size_t kBatchesKept = 32;
constexpr std::int64_t kSlowBatches = 2, kMeasuredBatches = 3;  // the first ones of an attempt
constexpr Nanoseconds kNever = Nanoseconds::max();
constexpr Nanoseconds kUnwatched = std::chrono::seconds(2);  // between two looks: this process was not there

// True where a rank does what it does in every batch.
bool is_usual(const RankSight& sight) {
  switch (sight.phase) {
    case Phase::kCallbacks:
    case Phase::kCheckpoint:
    case Phase::kValidation:
      return false;
    case Phase::kDataloaderNext:
      return sight.in_batch && sight.batch != sight.epochs_first;
    default:
      return sight.in_batch;
  }
}

// True where a rank may write to a slow disk for as long as that takes, or runs code of a script of unknown length.
bool is_open_ended(const RankSight& sight) {
  return !sight.in_batch || sight.phase == Phase::kCheckpoint;
}

// A rank on a GPU waits for others where it waits for its device.
bool waits(const RankSight& sight) {
  const bool for_device =
      sight.phase == Phase::kAllreduceWait || sight.phase == Phase::kDeviceWait || sight.phase == Phase::kFromDevice;
  return !sight.stopped && (sight.waits || (sight.in_batch && for_device));
}

}  // namespace

Nanoseconds HangWatch::limit() const {
  if (given_) return *given_;
  Nanoseconds slowest{0};
  for (const Watched& rank : ranks_) {
    for (const Nanoseconds batch : rank.batches) slowest = std::max(slowest, batch);
  }
  return std::max(kShortest, kTimes * slowest);
}

// True if the rank's batches take as long as they will from now on, and it is known how long that is.
bool HangWatch::is_known(const RankSight& sight) const {
  return sight.batch >= 0 && sight.batch >= sight.first_batch + kSlowBatches + (given_ ? 0 : kMeasuredBatches);
}

Nanoseconds HangWatch::patience_with(const RankSight& sight) const {
  if (sight.stopped) return limit();
  if (!is_known(sight) || is_open_ended(sight)) return kNever;
  return is_usual(sight) ? limit() : std::max(kShortestWhereSlow, kTimes * limit());
}

void HangWatch::begin_anew(std::span<const RankSight> sights, Nanoseconds now) {
  ranks_.resize(sights.size());
  for (std::size_t rank = 0; rank < sights.size(); ++rank) {
    Watched& watched = ranks_[rank];
    watched.last = sights[rank];
    watched.since = now;
    watched.in_queue.reset();
    watched.own = Nanoseconds{0};
    watched.batch = -1;
  }
}

void HangWatch::follow(Watched& rank, const RankSight& sight, Nanoseconds now) {
  if (is_usual(rank.last) && !rank.last.waits) rank.own += now - *last_look_;
  if (sight.batch != rank.batch) {
    const bool counts = rank.batch >= 0 && rank.batch >= sight.first_batch + kSlowBatches && sight.batch > rank.batch;
    if (counts) rank.batches.push_back(rank.own / (sight.batch - rank.batch));
    if (rank.batches.size() > kBatchesKept) rank.batches.pop_front();
    rank.batch = sight.batch;
    rank.own = Nanoseconds{0};
  }
  if (sight.moves != rank.last.moves || sight.stopped != rank.last.stopped) {
    rank.since = now;
    rank.in_queue.reset();
  } else if (!rank.in_queue) {
    rank.in_queue = sight.in_queue;
  }
  rank.last = sight;
}

std::optional<Hang> HangWatch::look(std::span<const RankSight> sights) {
  const Nanoseconds now = clock_.monotonic();
  const auto takes_part = [](const RankSight& sight) { return sight.takes_part; };
  const auto is_stopped = [](const RankSight& sight) { return !sight.takes_part || sight.stopped; };
  const bool unwatched = !last_look_ || now - *last_look_ > kUnwatched;
  const bool any_traced = std::any_of(sights.begin(), sights.end(), [](const auto& sight) { return sight.traced; });
  const auto taking_part = std::count_if(sights.begin(), sights.end(), takes_part);
  const bool all_stopped = std::all_of(sights.begin(), sights.end(), is_stopped);
  // Somebody has stopped the run, unless a rank has got to its end meanwhile.
  const bool run_stopped = all_stopped && taking_part == std::ssize(sights);
  if (unwatched || any_traced || run_stopped) {
    begin_anew(sights, now);
    last_look_ = now;
    return std::nullopt;
  }
  for (std::size_t rank = 0; rank < sights.size(); ++rank) follow(ranks_[rank], sights[rank], now);
  last_look_ = now;
  if (taking_part == 0 || (taking_part == 1 && !all_stopped)) return std::nullopt;

  const bool any_stopped = std::any_of(sights.begin(), sights.end(), [](const auto& s) { return s.stopped; });
  Hang hang{.still = kNever};
  bool any_waits = false;
  for (std::size_t rank = 0; rank < sights.size(); ++rank) {
    const RankSight& sight = sights[rank];
    if (!sight.takes_part) continue;
    const Watched& watched = ranks_[rank];
    const Nanoseconds without_core = watched.in_queue ? sight.in_queue - *watched.in_queue : Nanoseconds{0};
    const Nanoseconds still = now - watched.since - without_core;
    const bool for_others = waits(sight);
    if (still < (for_others && any_stopped ? limit() : patience_with(sight))) return std::nullopt;
    any_waits |= for_others;
    if (for_others) continue;
    hang.ranks.push_back(static_cast<int>(rank));
    hang.still = std::min(hang.still, still);
  }
  if (!any_waits && !all_stopped) return std::nullopt;
  if (hang.ranks.empty()) hang.still = limit();
  return hang;
}

}  // namespace dtrain::launcher
