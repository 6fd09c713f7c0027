#include "dtrain/profile/records.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include <spdlog/fmt/fmt.h>

namespace dtrain::profile {

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[] = {
      "dataloader_next",      "to_device",   "train_batch",    "train_batch.forward",
      "train_batch.backward", "graph",       "allreduce_wait", "optimizer_step",
      "step_lr_schedulers",   "from_device", "reduce_metrics", "callbacks",
      "checkpoint",           "validation",  "device_wait",    "other"};
  static_assert(std::size(kNames) == kPhaseCount);
  return phase < Phase::kCount ? kNames[static_cast<std::size_t>(phase)] : "unknown";
}

double bus_bandwidth(const CollectiveRecord& record) {
  const std::int64_t duration_ns = record.ended_ns - record.started_ns;
  if (duration_ns <= 0 || record.world_size <= 1) return 0;
  const double n = record.world_size;
  const std::string_view operation(record.operation, ::strnlen(record.operation, sizeof record.operation));
  double factor = 1;
  if (operation.starts_with("all_reduce")) factor = 2 * (n - 1) / n;
  if (operation.starts_with("reduce_scatter") || operation.starts_with("all_gather")) factor = (n - 1) / n;
  return static_cast<double>(record.bytes) * factor * 1e9 / static_cast<double>(duration_ns);
}

namespace {

constexpr double kGamma = (1 + Sketch::kRelativeError) / (1 - Sketch::kRelativeError);
const double kLogGamma = std::log(kGamma);
constexpr std::int32_t kLastBin = 2184;  // the bin of the largest 64-bit integer

std::int32_t bin_of(std::int64_t value) {
  return static_cast<std::int32_t>(std::ceil(std::log(static_cast<double>(value)) / kLogGamma));
}

std::int64_t saturating_product(std::int64_t value, std::int64_t times) {
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(value, times, &product)) return product;
  return value > 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

}  // namespace

double Sketch::value_of(std::int32_t index) {
  return 2 * std::exp(index * kLogGamma) / (kGamma + 1);
}

void Sketch::add(std::int64_t value, std::int64_t times) {
  if (times <= 0) return;
  min_ = count_ > 0 ? std::min(min_, value) : value;
  max_ = count_ > 0 ? std::max(max_, value) : value;
  count_ = plus(count_, times);
  sum_ = plus(sum_, saturating_product(value, times));
  if (value <= 0) {
    zeros_ = plus(zeros_, times);
    return;
  }
  const std::int32_t index = bin_of(value);
  const auto at = std::ranges::lower_bound(bins_, index, {}, &Bin::index);
  if (at != bins_.end() && at->index == index) {
    at->count = plus(at->count, times);
  } else {
    bins_.insert(at, {index, times});
  }
}

void Sketch::merge(const Sketch& other) {
  if (other.count_ == 0) return;
  min_ = count_ > 0 ? std::min(min_, other.min_) : other.min_;
  max_ = count_ > 0 ? std::max(max_, other.max_) : other.max_;
  count_ = plus(count_, other.count_);
  sum_ = plus(sum_, other.sum_);
  zeros_ = plus(zeros_, other.zeros_);
  std::vector<Bin> merged;
  merged.reserve(bins_.size() + other.bins_.size());
  auto mine = bins_.begin();
  for (const Bin& bin : other.bins_) {
    while (mine != bins_.end() && mine->index < bin.index) merged.push_back(*mine++);
    merged.push_back(bin);
    if (mine != bins_.end() && mine->index == bin.index) merged.back().count = plus(bin.count, (mine++)->count);
  }
  merged.insert(merged.end(), mine, bins_.end());
  bins_ = std::move(merged);
}

double Sketch::quantile(double share) const {
  if (count_ == 0) return 0;
  // The ends are known exactly.
  if (share <= 0) return static_cast<double>(min_);
  if (share >= 1) return static_cast<double>(max_);
  const double rank = share * static_cast<double>(count_ - 1);
  double below = static_cast<double>(zeros_);
  if (rank < below) return std::min(0.0, static_cast<double>(max_));
  for (const Bin& bin : bins_) {
    below += static_cast<double>(bin.count);
    if (rank < below) return std::clamp(value_of(bin.index), static_cast<double>(min_), static_cast<double>(max_));
  }
  return static_cast<double>(max_);
}

std::optional<Sketch> Sketch::restore(std::int64_t count, std::int64_t sum, std::int64_t min, std::int64_t max,
                                      std::int64_t zeros, std::span<const std::int64_t> bins) {
  if (count < 0 || zeros < 0 || min > max || bins.size() % 2 != 0) return std::nullopt;
  Sketch sketch;
  sketch.count_ = count;
  sketch.sum_ = sum;
  sketch.min_ = min;
  sketch.max_ = max;
  sketch.zeros_ = zeros;
  sketch.bins_.reserve(bins.size() / 2);
  std::int64_t total = zeros;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < bins.size(); i += 2) {
    if (bins[i] <= last || bins[i] > kLastBin || bins[i + 1] <= 0) return std::nullopt;
    last = bins[i];
    sketch.bins_.push_back({static_cast<std::int32_t>(bins[i]), bins[i + 1]});
    total = plus(total, bins[i + 1]);
  }
  if (total != count) return std::nullopt;
  return sketch;
}

std::string operators_file_name(int rank) {
  return fmt::format("operators-rank-{:04}.json", rank);
}

Json to_json(const OperatorCounts& counts) {
  Json rows = Json::array();
  for (const OperatorCount& count : counts.operators) {
    Json row = {{"name", count.name}, {"dtype", count.dtype}};
    if (!count.format.empty()) row["format"] = count.format;
    row.update({{"shapes", count.shapes}, {"calls", count.calls}, {"flops", count.flops}, {"bytes", count.bytes}});
    row["seconds"] = or_null(count.seconds);
    rows.push_back(std::move(row));
  }
  return {{"schema", kOperatorCountsSchema},
          {"rank", counts.rank},
          {"host", counts.host},
          {"device", counts.device},
          {"threads", counts.threads},
          {"batch", counts.batch},
          {"samples", counts.samples},
          {"counted_batches", counts.counted},
          {"flops_per_sample", counts.flops_per_sample},
          {"dtype", counts.dtype},
          {"operators", std::move(rows)}};
}

}  // namespace dtrain::profile
