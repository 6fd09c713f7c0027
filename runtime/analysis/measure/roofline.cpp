
#include <algorithm>

#include "dtrain/base/json.h"
#include "measure/roofline.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::OperatorCount;
using profile::OperatorCounts;
using profile::RankLimits;

OperatorLimit limit_of(const OperatorCount& count, const RankLimits* limits) {
  OperatorLimit limit{.name = count.name,
                      .dtype = count.dtype,
                      .format = count.format,
                      .shapes = count.shapes,
                      .calls = count.calls,
                      .flops = count.flops,
                      .bytes = count.bytes,
                      .seconds = count.seconds.value_or(0)};
  if (!limits) return limit;
  const auto rate = gflops_of(*limits, count.dtype);
  const auto& bandwidth = limits->memory_gb_s;
  if ((count.flops > 0 && !rate) || (count.bytes > 0 && !bandwidth)) return limit;
  const double computing_s = count.flops > 0 ? static_cast<double>(count.flops) / (*rate * kGiga) : 0;
  const double moving_s = count.bytes > 0 ? static_cast<double>(count.bytes) / (*bandwidth * kGiga) : 0;
  limit.ideal_s = std::min(limit.seconds, std::max(computing_s, moving_s));
  limit.by_memory = moving_s > computing_s;
  return limit;
}

double beyond_ideal(const OperatorLimit& operation) {
  return operation.seconds - operation.ideal_s.value_or(operation.seconds);
}

// Returns the seconds of a sample if each operator took its ideal time. An operator without a known limit counts with
// its measured time.
double ideal_of_sample(const OperatorCounts& counts, const RankLimits& limits) {
  double sum = 0;
  for (const OperatorCount& count : counts.operators) {
    const OperatorLimit operation = limit_of(count, &limits);
    sum += operation.ideal_s.value_or(operation.seconds);
  }
  return sum / static_cast<double>(counts.samples);
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

void add_limits(const RunProfile& run, Roofline& result) {
  if (run.ranks.empty() || result.device != "cpu") return;
  result.limit_gflops = result.limit_gb_s = result.ideal_s = 0;
  const auto hosts = profile::limits_of_plan(run.plan);
  for (const RankProfile& rank : run.ranks) {
    const RankLimits* const limits = limits_of(hosts, rank.host);
    add_known(result.limit_gflops, limits ? gflops_of(*limits, result.dtype) : std::nullopt);
    add_known(result.limit_gb_s, limits ? limits->memory_gb_s : std::nullopt);
    const OperatorCounts* const counts = counts_of(run, rank.rank);
    const bool known =
        limits && counts && limits->memory_gb_s && (result.dtype.empty() || gflops_of(*limits, result.dtype));
    add_known(result.ideal_s,
              known ? std::optional(ideal_of_sample(*counts, *limits) * static_cast<double>(rank.counts().samples) /
                                    static_cast<double>(run.ranks.size()))
                    : std::nullopt);
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
  add_limits(run, result);
  if (run.operator_counts.empty() || result.device != "cpu") return result;
  result.achieved_gb_s = achieved_gb_s(run);
  const OperatorCounts& first = run.operator_counts.front();
  const auto hosts = profile::limits_of_plan(run.plan);
  const RankLimits* const limits = limits_of(hosts, first.host);
  result.rank = first.rank;
  result.host = first.host;
  result.batch = first.batch;
  result.samples = first.samples;
  result.limits = limits ? std::optional(*limits) : std::nullopt;
  for (const OperatorCount& count : first.operators) result.operators.push_back(limit_of(count, limits));
  std::stable_sort(result.operators.begin(), result.operators.end(), [](const auto& a, const auto& b) {
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
         {"seconds", operation.seconds},
         {"ideal_s", or_null(operation.ideal_s)},
         {"bound", !operation.ideal_s ? Json(nullptr) : Json(operation.by_memory ? "memory" : "computing")}});
  }
  return {{"flops_per_sample", roofline.flops_per_sample},
          {"dtype", roofline.dtype},
          {"device", roofline.device},
          {"rank", roofline.rank < 0 ? Json(nullptr) : Json(roofline.rank)},
          {"host", roofline.host},
          {"batch", roofline.batch},
          {"samples", roofline.samples},
          {"limit_gflops", or_null(roofline.limit_gflops)},
          {"limit_gb_s", or_null(roofline.limit_gb_s)},
          {"achieved_gb_s", or_null(roofline.achieved_gb_s)},
          {"ideal_s", or_null(roofline.ideal_s)},
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
