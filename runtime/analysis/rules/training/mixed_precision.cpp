// Training in 32 bits on hardware that computes in 16 several times as fast: GPUs of compute capability 7.0 and above
// (Tensor Cores), processors with bfloat16 products (AVX-512 BF16, AMX, SVE's). What a trial casts by itself is not
// seen.
#include <algorithm>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct MixedPrecision {
  static constexpr const char* kWord = "MixedPrecision";
  RuleResult judge(const RuleData& data) const;
};

constexpr double kTensorCores = 7.0;

// Whether everything that computes has it; empty where that is not known of all.
std::optional<bool> hardware_has_it(Hosts hosts) {
  const bool on_gpus = has_gpus(hosts);
  bool all = true;
  for (const HostSeries& host : hosts) {
    if (!on_gpus) {
      if (!host.machine.bf16) return std::nullopt;
      all = all && *host.machine.bf16;
    }
    for (const Gpu& gpu : host.gpus) {
      if (!gpu.compute_capability) return std::nullopt;
      all = all && *gpu.compute_capability >= kTensorCores;
    }
  }
  return hosts.empty() ? std::nullopt : std::optional(all);
}

// Some of the GPUs have Tensor Cores for float16 alone.
bool lacks_bfloat16(Hosts hosts) {
  constexpr double kBfloat16 = 8.0;
  return std::any_of(hosts.begin(), hosts.end(), [](const HostSeries& host) {
    return std::any_of(host.gpus.begin(), host.gpus.end(),
                       [](const Gpu& gpu) { return gpu.compute_capability && *gpu.compute_capability < kBfloat16; });
  });
}

}  // namespace

RuleResult MixedPrecision::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "model", "runs",
      "Looks at whether a run computes in 32 bits on hardware that computes in 16 much faster. What a trial casts by "
      "itself is not seen.",
      lacks_bfloat16(data.hosts) ? "Set optimizations.mixed_precision: fp16 (docs/performance.md)."
                                 : "Set optimizations.mixed_precision: bf16 (docs/performance.md).");
  const ModelFacts& model = data.model;
  if (model.dtype.empty()) return not_applicable(std::move(result), "the model's type is not recorded in the plan");
  const auto has_it = hardware_has_it(data.hosts);
  if (!has_it) {
    return not_applicable(std::move(result), "whether the hardware computes in 16 bits is not recorded");
  }
  const bool wide = model.dtype == "float32" || model.dtype == "float64";
  const bool off = model.mixed_precision.empty() || model.mixed_precision == "O0" || model.mixed_precision == "none";
  result.datapoints = 1;
  result.triggered = *has_it && wide && off ? 1 : 0;
  result.counts = {{"runs", 1}, {"fine", 1 - result.triggered}, {"triggered", result.triggered}};
  result.details = {{"model", model.dtype}, {"mixed_precision", !off}, {"hardware_has_it", *has_it}};
  return result;
}

std::unique_ptr<Rule> make_mixed_precision() {
  return std::make_unique<RuleOf<MixedPrecision>>();
}

}  // namespace dtrain::analysis::rules
