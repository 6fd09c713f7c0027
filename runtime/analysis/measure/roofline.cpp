
#include <algorithm>
#include <utility>

#include "dtrain/base/json.h"
#include "measure/roofline.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::OperatorCount;
using profile::OperatorCounts;
using profile::RankLimits;

constexpr const char* kCuda = "cuda";
constexpr const char* kFloat32 = "float32";
constexpr const char* kTf32 = "tf32";

std::optional<double> rate_of(const ComputingLimits& limits, const std::string& dtype) {
  const auto found = limits.gflops.find(dtype);
  return found == limits.gflops.end() ? std::nullopt : std::optional(found->second);
}

// Returns the host's entry; null: there is none.
template <typename Value>
const Value* entry_of(const std::map<std::string, Value>& hosts, const std::string& host) {
  const auto found = hosts.find(host);
  return found == hosts.end() ? nullptr : &found->second;
}

// An operator whose time was not measured (on GPUs) may be faster than its ideal, because of caches.
OperatorLimit limit_of(const OperatorCount& count, const ComputingLimits* limits) {
  OperatorLimit limit{.name = count.name,
                      .dtype = count.dtype,
                      .format = count.format,
                      .shapes = count.shapes,
                      .calls = count.calls,
                      .flops = count.flops,
                      .bytes = count.bytes,
                      .seconds = count.seconds.value_or(0)};
  if (!limits) return limit;
  const auto rate = rate_of(*limits, count.dtype);
  const auto& bandwidth = limits->memory_gb_s;
  if ((count.flops > 0 && !rate) || (count.bytes > 0 && !bandwidth)) return limit;
  const double computing_s = count.flops > 0 ? static_cast<double>(count.flops) / (*rate * kGiga) : 0;
  const double moving_s = count.bytes > 0 ? static_cast<double>(count.bytes) / (*bandwidth * kGiga) : 0;
  limit.ideal_s = std::max(computing_s, moving_s);
  if (count.seconds) limit.ideal_s = std::min(*limit.ideal_s, *count.seconds);
  limit.by_memory = moving_s > computing_s;
  return limit;
}

double beyond_ideal(const OperatorLimit& operation) {
  return operation.seconds - operation.ideal_s.value_or(operation.seconds);
}

struct IdealTimes {
  double all_s = 0;
  double memory_s = 0;  // of operators that are limited by memory
};

// Returns the seconds of a sample if each operator took its ideal time. An operator without a known limit counts with
// its measured time.
IdealTimes ideal_of_sample(const OperatorCounts& counts, const ComputingLimits& limits) {
  IdealTimes sum;
  for (const OperatorCount& count : counts.operators) {
    const OperatorLimit operation = limit_of(count, &limits);
    const double seconds = operation.ideal_s.value_or(operation.seconds) / static_cast<double>(counts.samples);
    sum.all_s += seconds;
    if (operation.by_memory) sum.memory_s += seconds;
  }
  return sum;
}

// Returns the rank's counts, or else those of another rank: the model is the same.
const OperatorCounts* counts_of(const RunProfile& run, int rank) {
  for (const OperatorCounts& counts : run.operator_counts) {
    if (counts.rank == rank) return &counts;
  }
  return run.operator_counts.empty() ? nullptr : &run.operator_counts.front();
}

// Adds a rank's value; the sum is empty once a rank lacks the value.
void add_known(std::optional<double>& sum, const std::optional<double>& value) {
  sum = sum && value ? std::optional(*sum + *value) : std::nullopt;
}

void add_limits(const RunProfile& run, const LimitsOfRanks& of_ranks, Roofline& result) {
  if (run.ranks.empty() || result.device.empty()) return;
  result.limit_dtype = of_ranks.limit_type(result.dtype);
  result.limit_gflops = result.limit_gb_s = result.ideal_s = result.ideal_memory_s = 0;
  for (const RankProfile& rank : run.ranks) {
    const auto limits = of_ranks.of(rank.rank, rank.host);
    add_known(result.limit_gflops, limits ? rate_of(*limits, result.dtype) : std::nullopt);
    add_known(result.limit_gb_s, limits ? limits->memory_gb_s : std::nullopt);
    const OperatorCounts* const counts = counts_of(run, rank.rank);
    const bool known =
        limits && counts && limits->memory_gb_s && (result.dtype.empty() || rate_of(*limits, result.dtype));
    const IdealTimes ideal = known ? ideal_of_sample(*counts, *limits) : IdealTimes();
    const double samples = static_cast<double>(rank.counts().samples) / static_cast<double>(run.ranks.size());
    add_known(result.ideal_s, known ? std::optional(ideal.all_s * samples) : std::nullopt);
    add_known(result.ideal_memory_s, known ? std::optional(ideal.memory_s * samples) : std::nullopt);
    if (limits && rate_of(*limits, result.dtype)) continue;
    const std::string gpu = of_ranks.gpu_name(rank.rank);
    if (!gpu.empty() && std::ranges::find(result.gpus_without_limit, gpu) == result.gpus_without_limit.end())
      result.gpus_without_limit.push_back(gpu);
  }
}

std::optional<double> achieved_gb_s(const RunProfile& run) {
  double sum = 0;
  for (const OperatorCounts& counts : run.operator_counts) {
    double bytes = 0, seconds = 0;
    for (const OperatorCount& operation : counts.operators) {
      if (operation.flops > 0 || !operation.seconds) continue;
      bytes += static_cast<double>(operation.bytes);
      seconds += *operation.seconds;
    }
    if (seconds > 0) sum += bytes / seconds / kGiga;
  }
  return sum > 0 && run.operator_counts.size() == run.ranks.size() ? std::optional(sum) : std::nullopt;
}

constexpr std::int64_t kFewestChannels = 16;

// Casting reads four bytes of an element and writes two.
double casting_s(const Roofline& roofline, const OperatorLimit& operation) {
  constexpr double kBytesOfByte = 1.5;
  if (!roofline.limits || !roofline.limits->memory_gb_s) return 0;
  return kBytesOfByte * static_cast<double>(operation.bytes) / (*roofline.limits->memory_gb_s * kGiga);
}

// The weight is the tensor before the last or, in backward, the last: [out, in / groups, …].
bool has_few_channels(const OperatorLimit& operation) {
  const bool backward = operation.name.ends_with("_backward");
  const std::size_t place = backward ? 2 : 1;
  if (operation.shapes.size() <= place || operation.shapes[place].size() < 2) return true;
  return std::min(operation.shapes[place][0], operation.shapes[place][1]) < kFewestChannels;
}

}  // namespace

double Roofline::seconds() const {
  double sum = 0;
  for (const OperatorLimit& operation : operators) sum += operation.seconds;
  return sum;
}

LimitsOfRanks::LimitsOfRanks(const Json& plan, std::string device) : device_(std::move(device)) {
  if (device_ != kCuda) {
    hosts_ = profile::limits_of_plan(plan);
    return;
  }
  tf32_ = value_at<bool>(object_at(object_at(plan, "experiment"), "optimizations"), kTf32).value_or(true);
  gpus_ = profile::gpu_limits_of_plan(plan);
  for (const Json& rank : list_at(plan, "ranks")) {
    if (rank.is_object()) names_[static_cast<int>(integer(rank, "rank", -1))] = text(object_at(rank, "gpu"), "name");
  }
}

std::string LimitsOfRanks::gpu_name(int rank) const {
  const auto found = names_.find(rank);
  return found == names_.end() ? std::string() : found->second;
}

std::optional<profile::GpuLimits> LimitsOfRanks::gpu_of(int rank, const std::string& host) const {
  const auto* const kinds = entry_of(gpus_, host);
  if (!kinds) return std::nullopt;
  const std::string name = gpu_name(rank);
  if (name.empty()) return kinds->size() == 1 ? std::optional(kinds->front()) : std::nullopt;
  const auto found =
      std::ranges::find_if(*kinds, [&](const profile::GpuLimits& limits) { return limits.kind.name == name; });
  return found == kinds->end() ? std::nullopt : std::optional(*found);
}

std::optional<ComputingLimits> LimitsOfRanks::of(int rank, const std::string& host) const {
  if (device_ != kCuda) {
    const RankLimits* const limits = entry_of(hosts_, host);
    return limits ? std::optional(ComputingLimits{limits->gflops, limits->memory_gb_s}) : std::nullopt;
  }
  const auto gpu = gpu_of(rank, host);
  if (!gpu) return std::nullopt;
  ComputingLimits limits{gpu->gflops, gpu->memory_copy_gb_s};
  limits.gflops.erase(kFloat32);
  if (const auto found = gpu->gflops.find(limit_type(kFloat32)); found != gpu->gflops.end()) {
    limits.gflops[kFloat32] = found->second;
  }
  return limits;
}

std::string LimitsOfRanks::limit_type(const std::string& dtype) const {
  return device_ == kCuda && tf32_ && dtype == kFloat32 ? kTf32 : dtype;
}

Roofline make_roofline(const RunProfile& run) {
  Roofline result;
  const Json& counted = object_at(run.plan, "flops");
  result.flops_per_sample = number(counted, "per_sample");
  result.dtype = text(counted, "dtype");
  result.device = text(counted, "device");
  for (const OperatorCounts& counts : run.operator_counts) {
    if (counts.flops_per_sample <= result.flops_per_sample && !result.device.empty()) continue;
    result.flops_per_sample = counts.flops_per_sample;
    result.dtype = counts.dtype;
    result.device = counts.device;
  }
  const LimitsOfRanks of_ranks(run.plan, result.device);
  add_limits(run, of_ranks, result);
  if (run.operator_counts.empty()) return result;
  const OperatorCounts& first = run.operator_counts.front();
  const auto limits = of_ranks.of(first.rank, first.host);
  if (!result.is_timed()) {
    if (!limits) return result;
    result.gpu_limits = of_ranks.gpu_of(first.rank, first.host);
  } else {
    result.achieved_gb_s = achieved_gb_s(run);
    const auto hosts = profile::limits_of_plan(run.plan);
    if (const RankLimits* const of_host = entry_of(hosts, first.host)) result.limits = *of_host;
  }
  result.rank = first.rank;
  result.host = first.host;
  result.batch = first.batch;
  result.samples = first.samples;
  for (const OperatorCount& count : first.operators) {
    result.operators.push_back(limit_of(count, limits ? &*limits : nullptr));
  }
  std::stable_sort(result.operators.begin(), result.operators.end(), [&](const auto& a, const auto& b) {
    if (!result.is_timed()) return a.ideal_s.value_or(0) > b.ideal_s.value_or(0);
    return beyond_ideal(a) != beyond_ideal(b) ? beyond_ideal(a) > beyond_ideal(b) : a.seconds > b.seconds;
  });
  return result;
}

Json to_json(const Roofline& roofline) {
  Json rows = Json::array();
  for (const OperatorLimit& operation : roofline.operators) {
    rows.push_back(
        {{"name", operation.name},
         {"dtype", operation.dtype},
         {"format", operation.format.empty() ? Json(nullptr) : Json(operation.format)},
         {"shapes", operation.shapes},
         {"calls", operation.calls},
         {"flops", operation.flops},
         {"bytes", operation.bytes},
         {"seconds", roofline.is_timed() ? Json(operation.seconds) : Json(nullptr)},
         {"ideal_s", or_null(operation.ideal_s)},
         {"bound", !operation.ideal_s ? Json(nullptr) : Json(operation.by_memory ? "memory" : "computing")}});
  }
  return {{"flops_per_sample", roofline.flops_per_sample},
          {"dtype", roofline.dtype},
          {"device", roofline.device},
          {"limit_dtype", roofline.limit_dtype},
          {"rank", roofline.rank < 0 ? Json(nullptr) : Json(roofline.rank)},
          {"host", roofline.host},
          {"batch", roofline.batch},
          {"samples", roofline.samples},
          {"limit_gflops", or_null(roofline.limit_gflops)},
          {"limit_gb_s", or_null(roofline.limit_gb_s)},
          {"achieved_gb_s", or_null(roofline.achieved_gb_s)},
          {"ideal_s", or_null(roofline.ideal_s)},
          {"ideal_memory_s", or_null(roofline.ideal_memory_s)},
          {"gpu_limits", roofline.gpu_limits ? profile::to_json(*roofline.gpu_limits) : Json(nullptr)},
          {"operators", std::move(rows)}};
}

bool is_bound_by_calls(const OperatorLimit& operation) {
  constexpr double kWork_s = 5e-6, kCall_s = 50e-6;
  if (!operation.ideal_s || operation.calls == 0) return false;
  const auto calls = static_cast<double>(operation.calls);
  return *operation.ideal_s < kWork_s * calls && operation.seconds < kCall_s * calls &&
         *operation.ideal_s < operation.seconds / 2;
}

std::optional<double> limit_gflops_of(const Roofline& roofline, const OperatorLimit& operation,
                                      const std::string& dtype) {
  if (!roofline.limits) return std::nullopt;
  const auto& convolutions = roofline.limits->convolution_gflops;
  if (const auto found = convolutions.find(dtype); !operation.format.empty() && found != convolutions.end()) {
    return found->second;
  }
  return gflops_of(*roofline.limits, dtype);
}

std::optional<double> bf16_saving_s(const Roofline& roofline) {
  double saved_s = 0;
  bool any = false;
  for (const OperatorLimit& operation : roofline.operators) {
    if (operation.flops == 0 || operation.dtype != "float32" || is_bound_by_calls(operation)) continue;
    const auto wide = limit_gflops_of(roofline, operation, "float32"),
               narrow = limit_gflops_of(roofline, operation, "bfloat16");
    if (!wide || !narrow) return std::nullopt;
    any = true;
    saved_s += std::max(0.0, operation.seconds * (1 - std::min(1.0, *wide / *narrow)) - casting_s(roofline, operation));
  }
  return any ? std::optional(saved_s / static_cast<double>(roofline.samples)) : std::nullopt;
}

std::optional<double> channels_last_saving_s(const Roofline& roofline) {
  double saved_s = 0;
  bool any = false;
  for (const OperatorLimit& operation : roofline.operators) {
    if (operation.format != "contiguous" || operation.flops == 0 || has_few_channels(operation) ||
        is_bound_by_calls(operation))
      continue;
    if (!roofline.limits || !roofline.limits->convolution_gflops.contains(operation.dtype)) return std::nullopt;
    any = true;
    const double then_s =
        static_cast<double>(operation.flops) / (*limit_gflops_of(roofline, operation, operation.dtype) * kGiga);
    saved_s += std::max(0.0, operation.seconds - then_s);
  }
  return any ? std::optional(saved_s / static_cast<double>(roofline.samples)) : std::nullopt;
}

}  // namespace dtrain::analysis
