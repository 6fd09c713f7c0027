#include "launch/recoveries.h"

#include <algorithm>
#include <chrono>

#include "dtrain/base/text.h"

namespace dtrain::launcher {
namespace {

constexpr int kMostTimesAtAPlace = 3;
constexpr auto kPatienceWithRecords = std::chrono::seconds(1);  // the monitor writes them every 50 ms

Json seconds_between(const std::optional<Nanoseconds>& from, const std::optional<Nanoseconds>& to) {
  return from && to ? Json(to_seconds(*to - *from)) : Json();
}

}  // namespace

void Recoveries::begin_attempt(int number, std::int64_t from_batch, const PlacedLaunch& placed) {
  attempt_ = number;
  from_ = from_batch;
  placed_ = &placed;
  one_host_ = std::all_of(placed.ranks.begin(), placed.ranks.end(),
                          [&](const rank::RankPlacement& rank) { return rank.host == placed.ranks.front().host; }) &&
              placed.launcher().type == config::LauncherType::kLocal;
  done_ = std::max(done_, from_batch);
  times_ = analysis::BatchTimes(running_.folder.profile(), done_ + 1);
  started_.reset(), joined_.reset(), noticed_.reset(), reached_.reset();
}

void Recoveries::goes_on_from(std::int64_t batch) {
  from_ = batch;
  done_ = std::max(done_, batch);
}

void Recoveries::ranks_started() {
  if (!started_) started_ = running_.clock.monotonic();
}

void Recoveries::ranks_joined() {
  if (!joined_) joined_ = running_.clock.monotonic();
}

void Recoveries::failure_noticed() {
  if (!noticed_) noticed_ = running_.clock.monotonic();
}

void Recoveries::take(const rank::Progress& progress) {
  if (pending_ && !reached_ && progress.batch > done_) reached_ = running_.clock.monotonic();
}

void Recoveries::look() {
  if (!pending_ || !reached_) return;
  times_.poll();
  const bool late = !one_host_ || running_.clock.monotonic() - *reached_ > kPatienceWithRecords;
  if (times_.watched() || late) tell();
}

void Recoveries::end_attempt() {
  const Nanoseconds ended = running_.clock.monotonic();
  times_.poll();
  const auto last = times_.last();
  if (pending_ && (reached_ || (last && last->batch > done_))) tell();
  if (pending_) pending_->ended = ended;
  if (last) done_ = std::max(done_, last->batch);
  std::erase_if(faults_, [&](const auto& fault) {
    const auto of_rank = times_.last_of(fault.first.rank);
    return of_rank && of_rank->batch >= fault.first.batch;
  });
}

// The batch in which the rank was; empty: it is not known, or the rank was starting.
std::optional<std::int64_t> Recoveries::batch_of(int rank) const {
  const auto last = times_.last_of(rank);
  return last ? std::optional(std::max(last->batch, from_) + 1) : std::nullopt;
}

std::optional<Failure> Recoveries::repeated(const Failure& failure) {
  std::vector<RankFault> all = failure.also;
  all.insert(all.begin(), {failure.rank, failure.cause});
  std::optional<Failure> result;
  for (const RankFault& one : all) {
    const auto batch = batch_of(one.rank);
    if (!batch || ++faults_[{one.rank, *batch, one.cause}] < kMostTimesAtAPlace || result) continue;
    result = failure;
    result->cause = "rank " + std::to_string(one.rank) + " has failed three times at batch " + std::to_string(*batch) +
                    ": " + one.cause;
    result->remedy += std::string(failure.remedy.empty() ? "" : "; ") +
                      "the same fault at the same batch does not pass by itself: look at what the program does there";
  }
  return result;
}

void Recoveries::recover_from(const Failure& failure) {
  const Nanoseconds now = running_.clock.monotonic();
  lost_host_ = failure.lost_host;
  if (!pending_) {
    pending_ = Pending{.failure = failure, .noticed = noticed_.value_or(now), .ended = now};
    const auto rank = static_cast<std::size_t>(failure.rank);
    if (failure.rank >= 0 && rank < placed_->ranks.size()) pending_->host = placed_->ranks[rank].host;
    if (const auto last = times_.last(); last && one_host_) pending_->last_batch = last->end_ns;
  }
  pending_->ended = now;
}

void Recoveries::tell() {
  const Pending& failed = *pending_;
  const analysis::BatchTimes unknown({}, 0);  // other hosts have clocks of their own
  const analysis::BatchTimes& times = one_host_ ? times_ : unknown;
  const auto watched = times.watched();
  const auto first = times.first();
  const auto time_of = [](std::int64_t ns) { return std::optional(Nanoseconds(ns)); };
  const std::optional<Nanoseconds> before = failed.last_batch ? time_of(*failed.last_batch) : std::nullopt;
  const std::optional<Nanoseconds> resumed = first ? time_of(first->start_ns) : std::nullopt;
  const std::optional<Nanoseconds> ended = watched    ? time_of(watched->end_ns)
                                           : reached_ ? reached_
                                                      : running_.clock.monotonic();
  const std::optional<Nanoseconds> began = watched ? time_of(watched->start_ns) : ended;
  const double seconds = to_seconds(*ended - failed.noticed);
  const std::int64_t again = done_ - from_;
  Json fields = {{"attempt", attempt_},
                 {"rank", failed.failure.rank},
                 {"failed_on", failed.host},
                 {"cause", failed.failure.cause},
                 {"step", from_},
                 {"batches_again", again},
                 {"seconds", seconds},
                 {"noticed_s", seconds_between(before, failed.noticed)},
                 {"ended_s", seconds_between(failed.noticed, failed.ended)},
                 {"started_s", seconds_between(failed.ended, started_)},
                 {"joined_s", seconds_between(started_, joined_)},
                 {"resumed_s", seconds_between(joined_, resumed)},
                 {"new_batch_s", seconds_between(resumed ? resumed : joined_, ended)},
                 {"lost_s", seconds_between(before ? before : failed.noticed, began)}};
  running_.events.write("recovered", fields);
  running_.screen.line("dtrain: recovered: " + first_line(failed.failure.cause) +
                       (failed.host.empty() ? "" : " (host " + failed.host + ")") + "; attempt " +
                       std::to_string(attempt_) + " went on from batch " + std::to_string(from_) + " and did " +
                       (again == 0 ? "no batch" : count_of(again, "batch")) + " again; batch " +
                       std::to_string(done_ + 1) + ", the first new one, ended " +
                       format_duration(*ended - failed.noticed) + " after the failure was noticed");
  pending_.reset();
}

}  // namespace dtrain::launcher
