#include "agent/bounded_dump.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <utility>

#include "dtrain/base/statistics.h"

namespace dtrain::profile {
void DumpWindow::add(const Record& added) {
  if (added.kind == RecordKind::kStep) add_step(added.step);
  if (added.kind == RecordKind::kCollective) add_collective(added.collective);
  if (added.kind == RecordKind::kLoader) add_loader(added.loader);
  if (added.kind == RecordKind::kScope) add_scope(added.scope);
}

void DumpWindow::add_step(const StepRecord& step) {
  ++record.steps;
  record.exchanged += step.exchanged != 0 ? 1 : 0;
  record.samples += step.samples;
  record.wall_ns.add(step.wall_ns);
  const double difference = static_cast<double>(step.wall_ns) - mean_ns_;
  mean_ns_ += difference / static_cast<double>(record.steps);
  record.wall_ns_m2 += difference * (static_cast<double>(step.wall_ns) - mean_ns_);
  for (std::size_t i = 0; i < kPhaseCount; ++i) record.phases[i].add(time_in(step.phases, static_cast<Phase>(i)));
}

void DumpWindow::add_collective(const CollectiveRecord& c) {
  const auto key = [](const CollectiveSums& sums) { return std::tie(sums.operation, sums.bucket, sums.world_size); };
  CollectiveSums added{operation_of(c), c.bucket, c.world_size};
  auto at = std::ranges::lower_bound(record.collectives, key(added), std::less(), key);
  if (at == record.collectives.end() || key(*at) != key(added)) {
    at = record.collectives.insert(at, std::move(added));
    at->first_sequence = static_cast<std::int64_t>(c.sequence);
  }
  ++at->count;
  at->bytes += static_cast<std::int64_t>(c.bytes);
  at->last_sequence = static_cast<std::int64_t>(c.sequence);
  at->duration_ns.add(c.ended_ns - c.started_ns);
  at->exposed_ns.add(c.exposed_ns);
  at->queued_ns.add(c.started_ns - c.enqueued_ns);
}

void DumpWindow::add_loader(const LoaderRecord& loader) {
  LoaderSums& sums = record.loader;
  ++sums.count;
  sums.workers = loader.workers;
  sums.pinned = loader.pinned;
  sums.queue_depth.add(loader.queue_depth);
  if (loader.fetch_ns >= 0) sums.fetch_ns.add(loader.fetch_ns);
  if (loader.usage.batches > 0) sums.usage.add(loader.usage);
}

void DumpWindow::add_scope(const ScopeRecord& scope) {
  const std::string path = path_of(scope);
  auto at = std::ranges::lower_bound(record.scopes, path, std::less(), &ScopeSums::path);
  if (at == record.scopes.end() || at->path != path) {
    // A rank has no more paths, but damaged shared memory may have more.
    if (record.scopes.size() >= Scope::kMostPaths) return;
    at = record.scopes.insert(at, ScopeSums{.path = path});
  }
  at->calls += scope.calls;
  for (std::size_t i = 0; i < kPhaseCount; ++i) at->phases[i] += scope.phases[i];
  at->wall_ns.add(scope.wall_ns());
}

namespace {

constexpr std::size_t kWriteBytes = 256 * 1024;  // a write at most: bounds the agent's memory for a ring of any size

std::string_view view(const LineBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}

bool belongs_to_a_step(const Record& record) {
  return record.kind == RecordKind::kStep || record.kind == RecordKind::kCollective ||
         record.kind == RecordKind::kLoader || record.kind == RecordKind::kScope;
}

}  // namespace

bool OutlierTest::is_outlier(std::int64_t wall_ns) {
  if (seen_ >= kFewestSteps && seen_ % kRenewalSteps == 0) renew();
  recent_[seen_ % kRecentSteps] = wall_ns;
  ++seen_;
  return threshold_ns_ > 0 && wall_ns > threshold_ns_;
}

void OutlierTest::renew() {
  scratch_.assign(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(std::min(seen_, kRecentSteps)));
  const std::int64_t median = median_high(scratch_);
  for (std::int64_t& value : scratch_) value = std::abs(value - median);
  const std::int64_t deviation = median_high(scratch_);
  threshold_ns_ = median + std::max(kDeviations * deviation, median / kShareOfMedian);
}

// All ranks cut a run into the same windows: their lengths follow from the number of the step alone.
std::int64_t BoundedDump::window_length(std::int64_t begin) const {
  return kShortestWindow * (begin / steps_in_full_);
}

void BoundedDump::add_lines(std::string_view lines) {
  buffer_.append(lines);
  if (open_) open_->others.append(lines);
}

void BoundedDump::flush() {
  writer_.write(view(buffer_));
  buffer_.clear();
}

void BoundedDump::add(const Record& record) {
  if (buffer_.size() >= kWriteBytes) flush();
  if (!belongs_to_a_step(record)) {
    LineBuffer line;
    append_record(line, record);
    return add_lines(view(line));
  }
  if (!first_batch_ && record.batch > 0) first_batch_ = record.batch;
  const std::int64_t step = record.batch - first_batch_.value_or(record.batch);
  const bool of_new_step = record.batch > last_batch_;
  if (of_new_step) {
    if (open_ && step >= open_->end) close();
    if (!open_ && step >= steps_in_full_) open(step);
  }
  append_record(buffer_, record);
  const bool is_end = record.kind == RecordKind::kStep;
  if (!open_) {
    if (is_end) outliers_.is_outlier(record.step.wall_ns);
  } else if (!of_new_step) {
    open_->sums.add(record);  // comes late: its step is over
  } else {
    open_->current.push_back(record);
    if (is_end) end_step(record);
  }
  if (!is_end) return;
  last_batch_ = std::max(last_batch_, record.batch);
  if (open_ && step + 1 >= open_->end) close();
}

void BoundedDump::open(std::int64_t step) {
  flush();
  while (next_window_ + window_length(next_window_) <= step) next_window_ += window_length(next_window_);
  open_.emplace();
  open_->mark = writer_.mark();
  open_->begin = next_window_;
  open_->end = next_window_ += window_length(next_window_);
}

void BoundedDump::end_step(const Record& record) {
  OpenWindow& window = *open_;
  WindowRecord& sums = window.sums.record;
  if (window.empty) {
    window.empty = false;
    sums.first_batch = record.batch;
    sums.start_ns = record.step.start_ns;
  }
  sums.last_batch = record.batch;
  sums.epoch = record.step.epoch;
  sums.end_ns = record.step.start_ns + record.step.wall_ns;
  StepRecords records;
  records.swap(window.current);
  if (outliers_.is_outlier(record.step.wall_ns)) {
    window.longest.emplace(record.step.wall_ns, std::move(records));
    const std::int64_t room = std::max(kFewestOutliers, (window.end - window.begin) / kOutlierShare);
    if (std::ssize(window.longest) <= room) return;
    records = std::move(window.longest.extract(window.longest.begin()).mapped());
    ++sums.outliers_folded;
  }
  for (const Record& of_step : records) window.sums.add(of_step);
}

void BoundedDump::close() {
  OpenWindow window = std::move(*open_);
  open_.reset();
  if (window.empty || !window.mark) return;  // its lines stay
  std::vector<const StepRecords*> outliers;
  for (const auto& [wall_ns, records] : window.longest) outliers.push_back(&records);
  std::sort(outliers.begin(), outliers.end(),
            [](const StepRecords* a, const StepRecords* b) { return a->back().batch < b->back().batch; });
  LineBuffer lines;
  for (const StepRecords* records : outliers) {
    for (const Record& record : *records) append_record(lines, record);
  }
  lines.append(window.others);
  window.sums.record.outliers = std::ssize(outliers);
  append_fields(lines, "window", window.sums.record);
  // Records of an unfinished step stay too: they belong to the next window.
  for (const Record& record : window.current) append_record(lines, record);
  // The new lines fit only into at least as many written bytes: if fewer are written, the waiting ones are written
  // first.
  if (const auto written = writer_.written_since(*window.mark); written > 0 && written < lines.size()) flush();
  // If a line of the window could not be written, the old lines stay, and the unwritten ones follow them.
  if (writer_.replace(*window.mark, view(lines))) buffer_.clear();
}

}  // namespace dtrain::profile
