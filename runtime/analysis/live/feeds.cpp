#include <algorithm>

#include "live/feeds.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

// The most steps that are kept; very short steps would fill ten seconds with more than are needed.
constexpr std::size_t kMostRecent = 20'000;

std::int64_t end_of(const StepLine& step) {
  return plus(step.start_ns, step.wall_ns);
}

}  // namespace

void RankFeed::poll() {
  if (newer_) return;
  seen_before_ = last_batch_;
  const auto read = [&](std::string_view line) {
    if (!newer_) newer_ = reader_.read(line, *this) == LineKind::kNewerSchema;
  };
  tail_.poll(read, [&] { forget_steps(); });
  forget_old();
}

// A rank that connects again, in a later attempt, starts with an empty profile.
void RankFeed::header(const Json& json) {
  profile_.header = json.is_object() ? json : Json::object();
  profile_.host = text(profile_.header, "host");
  profile_.agent = text(profile_.header, "agent");
  profile_.end.reset();
  profile_.parts.clear();
  profile_.memory.clear();
  incomplete_ = false;
  forget_steps();
  last_end_ns_ = first_batch_ = last_batch_ = last_epoch_ = seen_before_ = 0;
}

void RankFeed::step(const StepLine& line) {
  if (line.start_ns < last_end_ns_) return;  // an outlier that was read before its window was replaced
  profile_.steps.push_back(line);
  if (first_batch_ == 0) first_batch_ = line.batch;
  last_end_ns_ = end_of(line);
  last_batch_ = line.batch;
  last_epoch_ = line.epoch;
  if (profile_.steps.size() >= 2 * kMostRecent) forget_old();
}

// A window's line follows those of its outliers; together they give the durations of its steps. If its steps were read
// before the window replaced them, they are enough.
void RankFeed::window(const WindowLine& line, const WindowSketches& sketches) {
  if (first_batch_ == 0) first_batch_ = line.first_batch;
  if (line.first_batch > seen_before_) {
    profile_.windows.push_back(line);
    window_walls_.push_back(sketches.wall);
  } else {
    std::erase_if(profile_.steps,
                  [&](const StepLine& step) { return step.batch > seen_before_ && step.batch <= line.last_batch; });
  }
  last_end_ns_ = std::max(last_end_ns_, line.end_ns);
  last_batch_ = std::max(last_batch_, line.last_batch);
  last_epoch_ = std::max(last_epoch_, line.epoch);
}

void RankFeed::forget_steps() {
  profile_.steps.clear();
  profile_.windows.clear();
  window_walls_.clear();
}

void RankFeed::forget_old() {
  const std::int64_t since = minus(last_end_ns_, kRecentNs);
  auto& windows = profile_.windows;
  const auto first_window =
      std::find_if(windows.begin(), windows.end(), [&](const WindowLine& line) { return line.end_ns >= since; });
  window_walls_.erase(window_walls_.begin(), window_walls_.begin() + (first_window - windows.begin()));
  windows.erase(windows.begin(), first_window);

  auto& steps = profile_.steps;
  std::int64_t folded = 0;
  for (const WindowLine& line : windows) add_to(folded, line.steps);
  const auto held = std::ssize(steps);
  const auto fewest = std::clamp<std::int64_t>(minus(std::int64_t{kFewestRecent}, folded), 0, held);
  auto first = std::find_if(steps.begin(), steps.end(), [&](const StepLine& step) { return end_of(step) >= since; });
  first = std::min(first, steps.end() - fewest);
  first = std::max(first, steps.end() - std::min<std::ptrdiff_t>(held, kMostRecent));
  steps.erase(steps.begin(), first);
}

}  // namespace dtrain::analysis
