#include "read/run_files.h"

#include <fcntl.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

static_assert(FileLines::kPadding >= simdjson::SIMDJSON_PADDING);

// A file that grows.

namespace {

constexpr std::size_t kChunk = 64 << 10;  // as a rule little is new

}  // namespace

bool FileTail::poll(const LineSink& line, const std::function<void()>& skipped) {
  UniqueFd fd;
  try {
    fd = open_regular(path_);
  } catch (const DataError& error) {
    problem_ = error.what();
    return false;
  } catch (const SystemError&) {  // not there yet, or not reachable for a moment
    return false;
  }
  struct stat now {};
  if (::fstat(fd.get(), &now) != 0) return false;
  written_ = static_cast<double>(now.st_mtim.tv_sec) + static_cast<double>(now.st_mtim.tv_nsec) / 1e9;
  if (now.st_ino != file_) {
    file_ = now.st_ino;
    offset_ = number_ = 0;
  }
  const auto size = static_cast<std::int64_t>(now.st_size);
  if (size < offset_ || !starts_line(fd.get())) {
    offset_ = std::max<std::int64_t>(0, std::min(size, offset_) - limits_.again);
    number_ = offset_ == 0 ? 0 : -1;
  }
  if (offset_ == 0) read(fd.get(), limits_.head, true, line);
  if (size - offset_ > limits_.most) {
    offset_ = size - limits_.most;
    number_ = -1;
    if (skipped) skipped();
  }
  read(fd.get(), std::numeric_limits<std::int64_t>::max(), starts_line(fd.get()), line);
  return true;
}

bool FileTail::starts_line(int fd) const {
  char before = '\n';
  return offset_ == 0 || (::pread(fd, &before, 1, offset_ - 1) == 1 && before == '\n');
}

void FileTail::read(int fd, std::int64_t stop, bool whole, const LineSink& line) {
  if (::lseek(fd, offset_, SEEK_SET) < 0) return;
  FileLines lines(duplicate(fd), kChunk);
  bool cut_off = false;
  for (std::string_view next; offset_ < stop && lines.next(next, cut_off) && !cut_off; whole = true) {
    if (number_ >= 0) ++number_;
    if (whole && !next.empty()) line(next);
    offset_ += std::ssize(next) + 1;
  }
  if (lines.too_long() || (cut_off && lines.number() == 1 && limits_.most <= unread(fd))) {
    if (number_ >= 0) ++number_;
    problem_ = place() + ": longer than " + format_bytes(static_cast<double>(limits_.most)) + "; it is not read";
    number_ = -1;
  }
}

std::int64_t FileTail::unread(int fd) const {
  struct stat now {};
  return ::fstat(fd, &now) == 0 ? static_cast<std::int64_t>(now.st_size) - offset_ : 0;
}

std::string FileTail::place() const {
  const std::string name = path_.filename().string();
  return number_ >= 0 ? name + ":" + std::to_string(number_) : name + ", byte " + std::to_string(offset_);
}

// The dumps of a profile.

namespace {

namespace fs = std::filesystem;

// Returns all dumps of one kind, by the number or id in their names.
std::vector<std::pair<std::string, fs::path>> find_dumps(const fs::path& folder, const std::string& prefix) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || entry.path().extension() != ".jsonl") continue;
    found.emplace_back(name.substr(prefix.size(), name.size() - prefix.size() - 6), entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::pair<int, fs::path>> rank_dumps(const fs::path& folder) {
  std::vector<std::pair<int, fs::path>> found;
  for (const auto& [digits, path] : find_dumps(folder, "rank-")) {
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size()) found.emplace_back(number, path);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return found;
}

std::vector<std::pair<std::string, fs::path>> monitor_dumps(const fs::path& folder) {
  return find_dumps(folder, "agent-");
}

// The counts of operators.

namespace {

using profile::OperatorCount;
using profile::OperatorCounts;

std::int64_t count_in(const Json& object, const char* key) {
  return std::max<std::int64_t>(0, integer(object, key));
}

std::vector<std::vector<std::int64_t>> shapes_in(const Json& row) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const Json& shape : list_at(row, "shapes")) {
    auto& sizes = shapes.emplace_back();
    if (!shape.is_array()) continue;
    for (const Json& size : shape) sizes.push_back(size.is_number_integer() ? size.get<std::int64_t>() : 0);
  }
  return shapes;
}

OperatorCount row_from(const Json& json) {
  OperatorCount row{.name = text(json, "name"),
                    .dtype = text(json, "dtype"),
                    .format = text(json, "format"),
                    .shapes = shapes_in(json),
                    .calls = count_in(json, "calls"),
                    .flops = count_in(json, "flops"),
                    .bytes = count_in(json, "bytes")};
  if (const auto seconds = value_at<double>(json, "seconds")) row.seconds = std::max(0.0, *seconds);
  return row;
}

OperatorCounts counts_from(const Json& json) {
  if (!json.is_object() || count_in(json, "samples") == 0) throw DataError("it has no count");
  if (integer(json, "schema") != profile::kOperatorCountsSchema) {
    throw DataError("its schema is " + std::to_string(integer(json, "schema")) + ", and this version reads " +
                    std::to_string(profile::kOperatorCountsSchema));
  }
  OperatorCounts counts{.rank = static_cast<int>(std::min(count_in(json, "rank"), kLargestWorld)),
                        .host = text(json, "host"),
                        .device = text(json, "device"),
                        .threads = count_in(json, "threads"),
                        .batch = count_in(json, "batch"),
                        .samples = count_in(json, "samples"),
                        .counted = count_in(json, "counted_batches"),
                        .flops_per_sample = std::max(0.0, number(json, "flops_per_sample")),
                        .dtype = text(json, "dtype")};
  for (const Json& row : list_at(json, "operators")) {
    if (row.is_object()) counts.operators.push_back(row_from(row));
  }
  return counts;
}

// Reads the files of a kind, of which each rank has one; ascending by rank.
template <typename Value>
std::vector<Value> read_of_ranks(const fs::path& folder, const std::string& prefix, Value (*read)(const Json&),
                                 std::vector<std::string>& warnings) {
  std::vector<Value> all;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".json")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    try {
      all.push_back(read(read_json(file)));
    } catch (const Error& bad) {
      warnings.push_back(file.filename().string() + ": " + bad.what());
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Value& a, const Value& b) { return a.rank < b.rank; });
  return all;
}

profile::KernelTimes kernel_times_from(const Json& json) {
  if (!json.is_object()) throw DataError("it has no times");
  return profile::kernel_times_of(json);
}

}  // namespace

std::vector<OperatorCounts> read_operator_counts(const fs::path& folder, std::vector<std::string>& warnings) {
  return read_of_ranks(folder, "operators-rank-", counts_from, warnings);
}

std::vector<profile::KernelTimes> read_kernel_times(const fs::path& folder, std::vector<std::string>& warnings) {
  return read_of_ranks(folder, "kernels-rank-", kernel_times_from, warnings);
}

// The other files of the run, for its summary.

namespace {

CompressionAccount read_compression(const Json& json) {
  return {.kind = text(json, "kind"),
          .text = text(json, "text"),
          .steps = integer(json, "steps"),
          .compressed_steps = integer(json, "compressed_steps"),
          .uncompressed_bytes = number(json, "uncompressed_bytes"),
          .sent_bytes = number(json, "sent_bytes"),
          .gained_s = value_at<double>(json, "gained_s")};
}

double sum_of_members(const Json& json, const std::string& key) {
  double sum = 0;
  for (const auto& [name, value] : object_at(json, key).items()) sum += value.is_number() ? value.get<double>() : 0;
  return sum;
}

StrategyAccount read_strategy(const Json& json) {
  return {.strategy = text(json, "strategy"),
          .text = text(json, "text"),
          .host_bytes = sum_of_members(json, "host_bytes"),
          .replicated_host_bytes = sum_of_members(json, "replicated_host_bytes"),
          .replicated_ms = value_at<double>(json, "replicated_ms"),
          .sharded_ms = value_at<double>(json, "sharded_ms")};
}

std::int64_t sum_of(const Json& list) {
  std::int64_t sum = 0;
  for (const Json& item : list) add_to(sum, item.is_number_integer() ? item.get<std::int64_t>() : 0);
  return sum;
}

void add_plan(const Json& plan, RunSummary& summary) {
  if (const Json* found = find_object(plan, "compression")) summary.compression = read_compression(*found);
  if (const Json* found = find_object(plan, "strategy")) summary.strategy = read_strategy(*found);
  if (const Json* found = find_object(plan, "non_finite")) {
    summary.non_finite = {integer(*found, "batches"), integer(*found, "first_batch"), text(*found, "text")};
  }
  summary.cuda_graphs = text(object_at(plan, "cuda_graphs"), "text");
  if (const Json* found = find_object(plan, "loss_scaling")) {
    summary.loss_scaling = {integer(*found, "skipped_updates"), number(*found, "scale"), text(*found, "text")};
  }
  summary.mock = text(object_at(plan, "mock"), "text");
  if (const auto batch = integer(plan, "global_batch_size", -1); batch >= 0) summary.global_batch_size = batch;
  if (const auto per_rank = plan.find("batch_per_rank"); !summary.global_batch_size && per_rank != plan.end()) {
    std::int64_t all = 0;
    if (!__builtin_mul_overflow(integer(plan, "batch_per_rank"), summary.world_size, &all) && all > 0) {
      summary.global_batch_size = all;
    }
    if (per_rank->is_array()) summary.global_batch_size = sum_of(*per_rank);
  }
  if (const auto per_rank = plan.find("batch_per_rank"); per_rank != plan.end() && per_rank->is_array()) {
    summary.batch_samples = sum_of(*per_rank);
  }
}

}  // namespace

void add_run_files(const RunProfile& run, RunSummary& summary) {
  add_plan(run.plan, summary);
  for (const Json& event : run.events) {
    if (text(event, "event") != "run_ended") continue;
    summary.state = text(event, "state");
    summary.cause = text(event, "cause");
  }
  summary.history = history_of(run.events);
  summary.history.look_into_storage();
  const Json& optimizations = object_at(run.experiment, "optimizations");
  summary.aggregation_frequency = std::max<std::int64_t>(1, integer(optimizations, "aggregation_frequency", 1));
  for (const Json& line : run.metrics) {
    if (text(line, "kind") == "training" && line.contains("optimizer_steps")) {
      summary.optimizer_steps = integer(line, "optimizer_steps");
    }
    const auto metrics = line.find("metrics");
    if (text(line, "kind") != "validation" || metrics == line.end() || !metrics->is_object()) continue;
    summary.validation.clear();
    for (const auto& [name, value] : metrics->items()) {
      if (const auto number = number_of(value)) summary.validation[name] = *number;
    }
    summary.validation_batch = integer(line, "batch");
  }
}

}  // namespace dtrain::analysis
