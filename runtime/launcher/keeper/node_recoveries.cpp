#include "keeper/node_recoveries.h"

#include <algorithm>
#include <cstdio>

#include "dtrain/analysis/batch_times.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::launcher {

void NodeRecoveries::begin_attempt(const std::filesystem::path& run_dir, std::int64_t from_batch) {
  attempt_ = rank::attempt_number({run_dir});
  from_ = from_batch;
  done_ = std::max(done_, from_batch);
}

void NodeRecoveries::take(const rank::Progress& progress) {
  if (!pending_ || progress.batch <= done_) return;
  const Nanoseconds passed = std::chrono::steady_clock::now() - pending_->noticed;
  const std::int64_t again = done_ - from_;
  write_("recovered", {{"attempt", attempt_},
                       {"rank", -1},
                       {"failed_on", ""},
                       {"cause", pending_->cause},
                       {"step", from_},
                       {"batches_again", again},
                       {"seconds", to_seconds(passed)},
                       {"noticed_s", nullptr},
                       {"ended_s", nullptr},
                       {"started_s", nullptr},
                       {"joined_s", nullptr},
                       {"resumed_s", nullptr},
                       {"new_batch_s", nullptr},
                       {"lost_s", to_seconds(passed)}});
  std::fprintf(
      stderr,
      "dtrain: recovered: %s; attempt %d went on from batch %lld and did %s again; batch %lld was done %s after "
      "the failure was noticed\n",
      first_line(pending_->cause).c_str(), attempt_, static_cast<long long>(from_),
      again == 0 ? "no batch" : count_of(again, "batch").c_str(), static_cast<long long>(progress.batch),
      format_duration(passed).c_str());
  pending_.reset();
}

void NodeRecoveries::fail(const std::filesystem::path& run_dir, const std::string& cause, SteadyTime noticed) {
  if (!run_dir.empty()) {
    analysis::BatchTimes times(rank::RunFolder{run_dir}.profile(), 0);
    times.poll();
    if (const auto last = times.last()) done_ = std::max(done_, last->batch);
  }
  if (!pending_) pending_ = Pending{cause, noticed};
}

}  // namespace dtrain::launcher
