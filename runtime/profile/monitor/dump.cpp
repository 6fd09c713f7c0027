#include "monitor/dump.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"

namespace dtrain::profile {
namespace {

// The pause between attempts to write to a full disk.
constexpr Nanoseconds kRetryPeriod = std::chrono::milliseconds(500);

constexpr const char* kReplacedNote = R"({"record":"replaced",)";

std::uint64_t count_lines(std::string_view lines) {
  return static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
}

bool write_at(int fd, std::uintmax_t offset, std::string_view content) {
  while (!content.empty()) {
    const auto place = static_cast<off_t>(offset);
    const ssize_t count = TEMP_FAILURE_RETRY(::pwrite(fd, content.data(), content.size(), place));
    if (count <= 0) return false;
    content.remove_prefix(static_cast<std::size_t>(count));
    offset += static_cast<std::uintmax_t>(count);
  }
  return true;
}

// Removes incomplete replacing lines from the end of a dump whose writer was killed; the lines that they were to
// replace stay. If other lines followed the incomplete ones, a reader could not tell them from complete ones.
void cut_torn_replacement(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::file_size(path, ignored) == 0 || ignored) return;
  const std::string content = read_file(path);
  const auto note = content.rfind(kReplacedNote);
  if (note == std::string::npos || (note > 0 && content[note - 1] != '\n')) return;
  const auto end = content.find('\n', note);
  const std::string line = content.substr(note, end == std::string::npos ? end : end - note);
  const Json json = Json::parse(line, nullptr, false);
  const bool whole =
      end != std::string::npos && json.is_object() && content.size() - end - 1 >= json.value("bytes", 0ULL);
  if (!whole) std::filesystem::resize_file(path, note, ignored);
}

constexpr std::size_t kWriteBytes = 256 * 1024;  // a write at most: bounds the monitor's memory for a ring of any size

std::string_view view(const LineBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}

bool belongs_to_a_step(const Record& record) {
  return record.kind == RecordKind::kStep || record.kind == RecordKind::kCollective ||
         record.kind == RecordKind::kLoader || record.kind == RecordKind::kScope;
}

}  // namespace

bool DumpWriter::append(std::string_view lines) {
  try {
    if (!file_) {
      cut_torn_replacement(path_);
      file_ = std::make_unique<LineAppender>(path_);
      size_ = std::filesystem::file_size(path_);
    }
    file_->append(lines);
    size_ += lines.size();
    return true;
  } catch (const std::exception& error) {
    if (!error_) error_ = error.what();
  }
  // The first lines may have fitted.
  std::error_code ignored;
  const std::uintmax_t size = file_ ? std::filesystem::file_size(path_, ignored) : 0;
  std::size_t kept = 0;
  if (file_ && !ignored && size > size_) {
    kept = std::min<std::size_t>(lines.size(), size - size_);
    size_ = size;
  }
  const std::uint64_t missing = count_lines(lines.substr(kept));
  lost_ += missing;
  lost_unreported_ += missing;
  next_attempt_ = clock_.monotonic() + kRetryPeriod;
  return false;
}

void DumpWriter::write(std::string_view lines) {
  if (lines.empty()) return;
  if (lost_unreported_ > 0) {
    const Nanoseconds now = clock_.monotonic();
    const std::uint64_t missing = lost_unreported_;
    if (now < next_attempt_) {
      lost_ += count_lines(lines);
      lost_unreported_ += count_lines(lines);
      return;
    }
    const Json note = {
        {"record", "lost"}, {"time_ns", now.count()}, {"count", missing}, {"reason", error_.value_or("")}};
    lost_unreported_ = 0;
    if (append(to_line(note) + "\n")) {
      append(lines);
      return;
    }
    // The note itself is not a record and does not count as lost; the records in its count still have to be reported.
    lost_ -= 1;
    lost_ += count_lines(lines);
    lost_unreported_ = missing + count_lines(lines);
    return;
  }
  append(lines);
}

std::optional<DumpWriter::Mark> DumpWriter::mark() {
  if (!file_ || lost_unreported_ > 0) return std::nullopt;
  return Mark{size_, lost_};
}

std::uintmax_t DumpWriter::written_since(const Mark& mark) const {
  return size_ - mark.size;
}

// Whenever this process ends, or a write fails, a reader finds either the old lines or the new ones. The new lines are
// first appended behind a line that names their place, then copied there, then the rest is cut off. They are at most as
// long as the old lines, so the copy does not overwrite the appended ones.
bool DumpWriter::replace(const Mark& mark, std::string_view lines) {
  const std::uintmax_t room = written_since(mark);
  if (lost_ != mark.lost || (room > 0 && lines.size() > room)) return false;
  if (room == 0) {
    write(lines);
    return true;
  }
  const std::uintmax_t end = size_;
  std::string marked = fmt::format("{}\"offset\":{},\"bytes\":{}}}\n", kReplacedNote, mark.size, lines.size());
  marked += lines;
  std::error_code error;
  try {
    file_->append(marked);
  } catch (const std::exception&) {
    std::filesystem::resize_file(path_, end, error);
    return false;
  }
  size_ += marked.size();
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || !write_at(fd.get(), mark.size, lines)) return true;
  if (::ftruncate(fd.get(), static_cast<off_t>(mark.size + lines.size())) == 0) size_ = mark.size + lines.size();
  return true;
}

void DumpWriter::sync() {
  if (!file_) return;
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::fdatasync(fd.get()) == 0) return;
  if (!error_) error_ = SystemError("cannot write " + path_.string() + " to disk", errno).what();
}

void DumpWindow::add(const Record& added) {
  if (added.kind == RecordKind::kStep) add_step(added.step);
  if (added.kind == RecordKind::kCollective) add_collective(added.collective);
  if (added.kind == RecordKind::kLoader) add_loader(added.loader);
  if (added.kind == RecordKind::kScope) add_scope(added.scope);
}

void DumpWindow::add_step(const StepRecord& step) {
  ++record.steps;
  record.exchanged += step.exchanged != 0 ? 1 : 0;
  add_fields<StepCounts>(record, step);
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
  std::ranges::sort(outliers, {}, [](const StepRecords* records) { return records->back().batch; });
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
