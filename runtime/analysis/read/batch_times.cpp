#include "dtrain/analysis/batch_times.h"

#include <algorithm>
#include <utility>

#include "dtrain/analysis/dump_reader.h"
#include "read/run_files.h"

namespace dtrain::analysis {
namespace {

// Of a long dump the first batches and the last ones are enough.
constexpr FileTail::Limits kLimits{.head = 16 << 10, .most = 256 << 10, .again = 64 << 10};

}  // namespace

class BatchTimes::OfRank final : private DumpHandler {
 public:
  OfRank(const std::filesystem::path& dump, std::int64_t watched) : tail_(dump, kLimits), watched_batch_(watched) {}

  void poll() {
    if (newer_) return;
    tail_.poll([this](std::string_view line) {
      if (!newer_) newer_ = reader_.read(line, *this) == LineKind::kNewerSchema;
    });
  }

  std::optional<BatchTime> first, last, watched;
  std::optional<std::int64_t> initialized_ns;

 private:
  void part(const PartLine& line) override {
    if (line.part == "initialization") initialized_ns = line.end_ns;
  }
  void step(const StepLine& line) override { add({line.batch, line.start_ns, line.start_ns + line.wall_ns}); }
  // The steps of a window have no times of their own: they count as equally long.
  void window(const WindowLine& line, const WindowSketches&) override {
    const std::int64_t batches = line.last_batch - line.first_batch + 1;
    if (batches < 1) return;
    const auto at = [&](std::int64_t done) {
      const double share = static_cast<double>(done) / static_cast<double>(batches);
      return line.start_ns + static_cast<std::int64_t>(share * static_cast<double>(line.end_ns - line.start_ns));
    };
    for (const std::int64_t batch : {line.first_batch, watched_batch_, line.last_batch}) {
      const std::int64_t before = batch - line.first_batch;
      if (before >= 0 && batch <= line.last_batch) add({batch, at(before), at(before + 1)});
    }
  }
  void add(const BatchTime& time) {
    if (!first) first = time;
    if (!last || time.batch >= last->batch) last = time;
    if (time.batch == watched_batch_ && !watched) watched = time;
  }

  FileTail tail_;
  DumpLineReader reader_;
  const std::int64_t watched_batch_;
  bool newer_ = false;
};

BatchTimes::BatchTimes(std::filesystem::path profile, std::int64_t watched)
    : profile_(std::move(profile)), watched_(watched) {}

BatchTimes::~BatchTimes() = default;
BatchTimes::BatchTimes(BatchTimes&&) noexcept = default;
BatchTimes& BatchTimes::operator=(BatchTimes&&) noexcept = default;

void BatchTimes::poll() {
  for (const auto& [rank, dump] : rank_dumps(profile_)) {
    auto& known = ranks_[rank];
    if (!known) known = std::make_unique<OfRank>(dump, watched_);
    known->poll();
  }
}

std::optional<BatchTime> BatchTimes::first() const {
  std::optional<BatchTime> first;
  for (const auto& [rank, times] : ranks_) {
    if (times->first && (!first || times->first->start_ns < first->start_ns)) first = times->first;
  }
  return first;
}

std::optional<BatchTime> BatchTimes::last() const {
  std::optional<BatchTime> last;
  for (const auto& [rank, times] : ranks_) {
    if (!times->last || (last && times->last->batch < last->batch)) continue;
    if (!last || times->last->batch > last->batch || times->last->end_ns > last->end_ns) last = times->last;
  }
  return last;
}

std::optional<BatchTime> BatchTimes::last_of(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return std::nullopt;
  if (found->second->last) return found->second->last;
  const auto& initialized = found->second->initialized_ns;
  return initialized ? std::optional(BatchTime{.start_ns = *initialized, .end_ns = *initialized}) : std::nullopt;
}

std::optional<BatchTime> BatchTimes::watched() const {
  std::optional<BatchTime> all;
  for (const auto& [rank, times] : ranks_) {
    if (!times->watched) return std::nullopt;
    if (!all) all = times->watched;
    all->start_ns = std::min(all->start_ns, times->watched->start_ns);
    all->end_ns = std::max(all->end_ns, times->watched->end_ns);
  }
  return all;
}

}  // namespace dtrain::analysis
