// Rules about settings that make training faster: mixed precision, a fused optimizer, page-locked memory.
#include <algorithm>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

// Training in 32 bits on hardware that computes several times as fast in 16 bits: GPUs of compute capability 7.0 and
// above (Tensor Cores), processors with bfloat16 products (AVX-512 BF16, AMX, SVE's). The rule does not see tensors
// that a trial casts by itself.
struct MixedPrecision {
  static constexpr const char* kWord = "MixedPrecision";
  RuleResult judge(const RuleData& data) const;
};

constexpr double kTensorCores = 7.0;

// True if all computing devices support fast 16-bit products; empty: not known of all devices.
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

// True if some GPUs have Tensor Cores only for float16.
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

// An optimizer that updates each parameter with several small operations takes ten times as long as a fused one.

namespace {

struct FusedOptimizer {
  static constexpr const char* kWord = "FusedOptimizer";
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult FusedOptimizer::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "model", "runs", "Looks at whether the optimizer updates all parameters at once.",
                   "Hand dtrain's own optimizer to wrap_optimizer(): it is fused.");
  const ModelFacts& model = data.model;
  if (!model.fused_optimizer) return not_applicable(std::move(result), "the optimizer is not recorded in the plan");
  result.datapoints = 1;
  result.triggered = *model.fused_optimizer ? 0 : 1;
  result.counts = {{"runs", 1}, {"fused", 1 - result.triggered}, {"triggered", result.triggered}};
  result.details = {{"optimizer", model.optimizer}, {"fused", *model.fused_optimizer}};
  return result;
}

std::unique_ptr<Rule> make_fused_optimizer() {
  return std::make_unique<RuleOf<FusedOptimizer>>();
}

// Batches that are copied to a GPU from memory that the system may move: their copy does not overlap with computing.

namespace {

struct PinnedMemory {
  static constexpr const char* kWord = "PinnedMemory";
  static constexpr bool kGpusOnly = true;
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult PinnedMemory::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "model", "ranks",
                   "Looks at whether loaders hand over batches in page-locked (pinned) memory, from "
                   "which copies to a GPU are faster "
                   "and overlap with computing.",
                   "Leave data.pin on (LoaderSettings::pin in a program); in a BatchSource of your own: "
                   "at::Tensor::pin_memory().");
  if (!has_gpus(data.hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    if (!loader.pinned) {
      ++unknown;
      continue;
    }
    result.datapoints += loader.records;
    result.triggered += *loader.pinned ? 0 : 1;
    all.push_back({{"rank", loader.rank}, {"pinned", *loader.pinned}});
  }
  if (all.empty()) return not_applicable(std::move(result), "whether batches are pinned is not recorded");
  const auto count = static_cast<std::int64_t>(data.loaders.size());
  result.counts = {{"ranks", count},
                   {"not_known", unknown},
                   {"pinned", count - unknown - result.triggered},
                   {"triggered", result.triggered}};
  result.details["ranks"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_pinned_memory() {
  return std::make_unique<RuleOf<PinnedMemory>>();
}

}  // namespace dtrain::analysis::rules
