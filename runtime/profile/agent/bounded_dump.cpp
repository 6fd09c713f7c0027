#include "agent/bounded_dump.h"

#include <algorithm>
#include <cstdlib>

#include "dtrain/base/statistics.h"

namespace dtrain::profile {
namespace {

void append_sketch(LineBuffer& out, const Sketch& sketch) {
  put(out, FMT_COMPILE("{{\"count\":{},\"sum\":{},\"min\":{},\"max\":{},\"zeros\":{},\"bins\":["), sketch.count(),
      sketch.sum(), sketch.min(), sketch.max(), sketch.zeros());
  const char* separator = "";
  for (const Sketch::Bin& bin : sketch.bins()) {
    put(out, FMT_COMPILE("{}{},{}"), separator, bin.index, bin.count);
    separator = ",";
  }
  put(out, FMT_COMPILE("]}}"));
}

}  // namespace

void DumpWindow::add(const Record& record) {
  if (record.kind == RecordKind::kStep) add_step(record.step);
  if (record.kind == RecordKind::kCollective) add_collective(record.collective);
  if (record.kind == RecordKind::kScope) add_scope(record.scope);
  if (record.kind != RecordKind::kLoader) return;
  loader_.workers = record.loader.workers;
  loader_.pinned = record.loader.pinned != 0;
  loader_.queue_depth.add(record.loader.queue_depth);
  if (record.loader.fetch_ns >= 0) loader_.fetch_ns.add(record.loader.fetch_ns);
  if (record.loader.cpu_ns < 0) return;
  ++loader_.measured;
  loader_.cpu_ns += record.loader.cpu_ns;
  loader_.no_core_ns += record.loader.no_core_ns;
  loader_.bytes += record.loader.bytes;
  loader_.disk_bytes += record.loader.disk_bytes;
  loader_.requests += record.loader.requests;
  loader_.skipped += record.loader.skipped;
}

void DumpWindow::add_step(const StepPayload& step) {
  exchanged_ += step.exchanged != 0 ? 1 : 0;
  samples_ += step.samples;
  wall_ns_.add(step.wall_ns);
  const double difference = static_cast<double>(step.wall_ns) - mean_ns_;
  mean_ns_ += difference / static_cast<double>(wall_ns_.count());
  m2_ += difference * (static_cast<double>(step.wall_ns) - mean_ns_);
  for (std::size_t i = 0; i < kPhaseCount; ++i) phases_[i].add(time_in(step.phases, static_cast<Phase>(i)));
}

void DumpWindow::add_collective(const CollectiveRecord& c) {
  CollectiveSums& sums = collectives_[{operation_of(c), c.bucket, c.world_size}];
  if (sums.duration_ns.count() == 0) sums.first_sequence = c.sequence;
  sums.last_sequence = c.sequence;
  sums.bytes += static_cast<std::int64_t>(c.bytes);
  sums.duration_ns.add(c.ended_ns - c.started_ns);
  sums.exposed_ns.add(c.exposed_ns);
  sums.queued_ns.add(c.started_ns - c.enqueued_ns);
}

void DumpWindow::add_scope(const ScopePayload& scope) {
  const std::string path = path_of(scope);
  // A rank has no more paths; what comes from its memory may have.
  if (scopes_.size() >= Scope::kMostPaths && !scopes_.contains(path)) return;
  ScopeSums& sums = scopes_[path];
  sums.calls += scope.calls;
  for (std::size_t i = 0; i < kPhaseCount; ++i) sums.phases[i] += scope.phases[i];
  sums.wall_ns.add(wall_of(scope));
}

void DumpWindow::append_line(LineBuffer& out, const Frame& frame) const {
  put(out,
      FMT_COMPILE("{{\"record\":\"window\",\"first_batch\":{},\"last_batch\":{},\"epoch\":{},\"start_ns\":{},"
                  "\"end_ns\":{},\"steps\":{},\"outliers\":{},\"outliers_folded\":{},\"exchanged\":{},\"samples\":{},"
                  "\"wall_ns\":"),
      frame.first_batch, frame.last_batch, frame.epoch, frame.start_ns, frame.end_ns, wall_ns_.count(), frame.outliers,
      frame.outliers_folded, exchanged_, samples_);
  append_sketch(out, wall_ns_);
  put(out, FMT_COMPILE(",\"wall_ns_m2\":{:.9g},\"phases\":{{"), m2_);
  const char* separator = "";
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    put(out, FMT_COMPILE("{}\"{}\":"), separator, name_of(static_cast<Phase>(i)));
    append_sketch(out, phases_[i]);
    separator = ",";
  }
  put(out, FMT_COMPILE("}},\"collectives\":["));
  separator = "";
  for (const auto& [key, sums] : collectives_) {
    put(out,
        FMT_COMPILE("{}{{\"operation\":\"{}\",\"bucket\":{},\"world_size\":{},\"count\":{},\"bytes\":{},"
                    "\"first_sequence\":{},\"last_sequence\":{},\"duration_ns\":"),
        separator, key.operation, key.bucket, key.world_size, sums.duration_ns.count(), sums.bytes, sums.first_sequence,
        sums.last_sequence);
    append_sketch(out, sums.duration_ns);
    put(out, FMT_COMPILE(",\"exposed_ns\":"));
    append_sketch(out, sums.exposed_ns);
    put(out, FMT_COMPILE(",\"queued_ns\":"));
    append_sketch(out, sums.queued_ns);
    put(out, FMT_COMPILE("}}"));
    separator = ",";
  }
  put(out, FMT_COMPILE("],\"loader\":{{\"count\":{},\"workers\":{},\"pinned\":{},\"queue_depth\":"),
      loader_.queue_depth.count(), loader_.workers, loader_.pinned ? "true" : "false");
  append_sketch(out, loader_.queue_depth);
  put(out, FMT_COMPILE(",\"fetch_ns\":"));
  append_sketch(out, loader_.fetch_ns);
  if (loader_.measured > 0) {
    put(out,
        FMT_COMPILE(",\"measured\":{},\"cpu_ns\":{},\"no_core_ns\":{},\"bytes\":{},\"disk_bytes\":{},"
                    "\"requests\":{},\"skipped\":{}"),
        loader_.measured, loader_.cpu_ns, loader_.no_core_ns, loader_.bytes, loader_.disk_bytes, loader_.requests,
        loader_.skipped);
  }
  put(out, FMT_COMPILE("}}"));
  if (!scopes_.empty()) put(out, FMT_COMPILE(",\"scopes\":["));
  separator = "";
  for (const auto& [path, sums] : scopes_) {
    put(out, FMT_COMPILE("{}{{\"scope\":\"{}\",\"calls\":{},\"wall_ns\":"), separator, path, sums.calls);
    append_sketch(out, sums.wall_ns);
    append_scope_phases(out, sums.phases);
    put(out, FMT_COMPILE("}}"));
    separator = ",";
  }
  put(out, FMT_COMPILE("{}}}\n"), scopes_.empty() ? "" : "]");
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
  if (window.empty) {
    window.empty = false;
    window.frame.first_batch = record.batch;
    window.frame.start_ns = record.step.start_ns;
  }
  window.frame.last_batch = record.batch;
  window.frame.epoch = record.step.epoch;
  window.frame.end_ns = record.step.start_ns + record.step.wall_ns;
  StepRecords records;
  records.swap(window.current);
  if (outliers_.is_outlier(record.step.wall_ns)) {
    window.longest.emplace(record.step.wall_ns, std::move(records));
    const std::int64_t room = std::max(kFewestOutliers, (window.end - window.begin) / kOutlierShare);
    if (std::ssize(window.longest) <= room) return;
    records = std::move(window.longest.extract(window.longest.begin()).mapped());
    ++window.frame.outliers_folded;
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
  window.frame.outliers = std::ssize(outliers);
  window.sums.append_line(lines, window.frame);
  // Records of a step that has not ended stay too: they belong to the next window.
  for (const Record& record : window.current) append_record(lines, record);
  // They take the place of no less than themselves: what is not written yet may be needed for that.
  if (const auto written = writer_.written_since(*window.mark); written > 0 && written < lines.size()) flush();
  // Where a line of the window could not be written the others stay, and what is not written yet goes behind them.
  if (writer_.replace(*window.mark, view(lines))) buffer_.clear();
}

}  // namespace dtrain::profile
