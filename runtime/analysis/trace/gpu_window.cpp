#include "trace/gpu_window.h"

#include <algorithm>
#include <optional>

#include "dtrain/base/text.h"

namespace dtrain::analysis {
namespace {

// The GPU waits longer than this not for the launch itself but for what the host did before it: loading, Python, a
// wait.
constexpr double kLongestLaunchGap_us = 100;

// Returns the number that links a call of the CUDA runtime and the work that it launched; 0: the event has none.
std::int64_t correlation_of(std::string_view args) {
  constexpr std::string_view kKey = "\"correlation\":";
  const auto found = args.find(kKey);
  if (found == std::string_view::npos) return 0;
  args.remove_prefix(found + kKey.size());
  args.remove_prefix(std::min(args.find_first_not_of(' '), args.size()));
  return take_number<std::int64_t>(args).value_or(0);
}

}  // namespace

void GpuWindowCounter::add(const RawEvent& event) {
  const std::string_view category = unquoted(event.category);
  const Span span{event.ts_us(), event.ts_us() + event.dur_us()};
  if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
    works_.push_back({span, correlation_of(event.args)});
  } else if (category == "cuda_runtime" || category == "cuda_driver") {
    if (const std::int64_t correlation = correlation_of(event.args); correlation != 0) launches_[correlation] = span;
  }
}

void GpuWindowCounter::count(std::int64_t batches, GpuWindow& into) {
  if (works_.empty()) return;
  std::ranges::sort(works_, {}, &Work::start_us);
  into.batches += batches;
  into.works += static_cast<std::int64_t>(works_.size());
  double end_us = works_.front().start_us;  // of all work so far
  std::optional<double> last_launch_us;     // the end of the call that launched the work before
  double last_work_us = 0;                  // what that work took
  for (const Work& work : works_) {
    const auto launch = launches_.find(work.correlation);
    const bool known = launch != launches_.end();
    const double gap_us = work.start_us - end_us;
    if (gap_us > 0) into.idle_s += gap_us / 1e6;
    if (gap_us > 0 && gap_us <= kLongestLaunchGap_us && known && last_launch_us && launch->second.end_us > end_us) {
      ++into.late_launches;
      into.launch_gaps_s += gap_us / 1e6;
      into.late_launch_s += std::max(0.0, launch->second.end_us - *last_launch_us) / 1e6;
      into.work_before_s += last_work_us / 1e6;
    }
    into.busy_s += std::max(0.0, work.end_us - std::max(end_us, work.start_us)) / 1e6;
    end_us = std::max(end_us, work.end_us);
    last_launch_us = known ? std::optional(launch->second.end_us) : std::nullopt;
    last_work_us = work.end_us - work.start_us;
  }
}

}  // namespace dtrain::analysis
