// How the model is computed: rules about its sizes and settings, and computing that is slower than the machine allows,
// from the counted operators and the machine's limits.
#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "findings/judgement.h"
#include "measure/roofline.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

constexpr std::size_t kMostLayers = 50;  // layers, in the details

std::int64_t bytes_of(const std::string& dtype) {
  return dtype == "float16" || dtype == "bfloat16" ? 2 : dtype == "float64" ? 8 : 4;
}

// Returns the number of elements whose multiples suit the hardware; 0: not known.
std::int64_t liked_by_hardware(const ModelFacts& model, Hosts hosts) {
  if (has_gpus(hosts)) return 16 / bytes_of(model.dtype);
  std::int64_t narrowest = 0;
  for (const HostSeries& host : hosts) {
    if (!host.machine.vector_bits) return 0;
    const std::int64_t elements = *host.machine.vector_bits / 8 / bytes_of(model.dtype);
    narrowest = narrowest == 0 ? elements : std::min(narrowest, elements);
  }
  return narrowest;
}

double padded(std::int64_t size, std::int64_t multiple) {
  const std::int64_t multiples = (size + multiple - 1) / multiple;
  return static_cast<double>(multiples * multiple);
}

// Returns by how much padding increases the computing, in percent.
double padding_percent(double with, double without) {
  return without > 0 ? 100 * (with / without - 1) : 0;
}

std::string judge_dimensions(const RuleData& data, const Parameters& p, Finding& result) {
  const double threshold = p["threshold"];
  const std::int64_t multiple = p.count("multiple");
  const ModelFacts& model = data.model;
  if (model.shapes.empty()) return "the shapes of the model are not recorded in the plan";
  const std::int64_t liked = multiple > 0 ? multiple : liked_by_hardware(model, data.hosts);
  if (liked <= 0) return "the width of the processor's vectors is not recorded; set DimensionMultiples.multiple";
  double needed = 0, computed = 0;
  std::int64_t layers = 0, odd = 0;
  Json listed = Json::array();
  for (const Shape& shape : model.shapes) {
    if (shape.sizes.size() < 2) continue;  // biases, norms: no products
    ++layers;
    const auto elements =
        static_cast<double>(std::accumulate(shape.sizes.begin(), shape.sizes.end(), std::int64_t{1},
                                            [](auto a, auto b) { return a * std::max<std::int64_t>(1, b); }));
    const auto features = static_cast<double>(shape.sizes[0] * shape.sizes[1]);
    const double with =
        features > 0 ? elements / features * padded(shape.sizes[0], liked) * padded(shape.sizes[1], liked) : elements;
    needed += elements;
    computed += with;
    const double own = padding_percent(with, elements);
    if (own <= threshold) continue;
    ++odd;
    if (listed.size() < kMostLayers) {
      listed.push_back({{"name", shape.name}, {"sizes", shape.sizes}, {"padding_percent", own}});
    }
  }
  const double total = padding_percent(computed, needed);
  const std::int64_t too_small_to_matter = total > threshold ? 0 : odd;

  const std::set<std::int64_t> sizes(model.batch_per_rank.begin(), model.batch_per_rank.end());
  std::int64_t odd_batches = 0;
  const bool batch_counts = has_gpus(data.hosts) || multiple > 0;
  Json batches = Json::array();
  for (const std::int64_t size : sizes) {
    if (!batch_counts || size <= 0) continue;
    const double own = padding_percent(padded(size, liked), static_cast<double>(size));
    odd_batches += own > threshold ? 1 : 0;
    batches.push_back({{"batch", size}, {"padding_percent", own}});
  }
  result.datapoints = layers + static_cast<std::int64_t>(batches.size());
  result.triggered = odd - too_small_to_matter + odd_batches;
  result.counts = {{"layers", layers},
                   {"fitting_layers", layers - odd},
                   {"odd_layers", odd},
                   {"too_small_to_matter", too_small_to_matter},
                   {"batch_sizes", batches.size()},
                   {"odd_batch_sizes", odd_batches},
                   {"triggered", result.triggered}};
  result.details = {
      {"multiple", liked}, {"padding_percent", total}, {"layers", std::move(listed)}, {"batches", std::move(batches)}};
  return {};
}

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

std::string judge_precision(const RuleData& data, const Parameters&, Finding& result) {
  result.patch = {lacks_bfloat16(data.hosts) ? "optimizations.mixed_precision=fp16"
                                             : "optimizations.mixed_precision=bf16"};
  result.advice = "Set " + keys_text(result.patch) + " (docs/performance.md).";
  const ModelFacts& model = data.model;
  if (model.dtype.empty()) return "the model's type is not recorded in the plan";
  const auto has_it = hardware_has_it(data.hosts);
  if (!has_it) return "whether the hardware computes in 16 bits is not recorded";
  const bool wide = model.dtype == "float32" || model.dtype == "float64";
  const bool off = model.mixed_precision.empty() || model.mixed_precision == "O0" || model.mixed_precision == "none";
  result.datapoints = 1;
  result.triggered = *has_it && wide && off ? 1 : 0;
  result.counts = {{"runs", 1}, {"fine", 1 - result.triggered}, {"triggered", result.triggered}};
  result.details = {{"model", model.dtype}, {"mixed_precision", !off}, {"hardware_has_it", *has_it}};
  return {};
}

std::string judge_optimizer(const RuleData& data, const Parameters&, Finding& result) {
  const ModelFacts& model = data.model;
  if (!model.fused_optimizer) return "the optimizer is not recorded in the plan";
  result.datapoints = 1;
  result.triggered = *model.fused_optimizer ? 0 : 1;
  result.counts = {{"runs", 1}, {"fused", 1 - result.triggered}, {"triggered", result.triggered}};
  result.details = {{"optimizer", model.optimizer}, {"fused", *model.fused_optimizer}};
  return {};
}

// --- the counted operators ---

constexpr double kSlow = 0.5;             // of the limit
constexpr double kFar = 3;                // times the ideal
constexpr std::int64_t kSmallBatch = 64;  // rows of a product

// The three sizes of a product of matrices: rows of the first, columns of the first, columns of the second.
std::optional<std::array<std::int64_t, 3>> product_sizes(const OperatorLimit& operation) {
  const bool added = operation.name == "aten::addmm" || operation.name == "aten::baddbmm";
  if (!added && operation.name != "aten::mm" && operation.name != "aten::bmm") return std::nullopt;
  const std::size_t first = added ? 1 : 0;
  if (operation.shapes.size() < first + 2) return std::nullopt;
  const auto &a = operation.shapes[first], &b = operation.shapes[first + 1];
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  return std::array{a[a.size() - 2], a.back(), b.back()};
}

std::string sizes_text(const std::array<std::int64_t, 3>& sizes) {
  return fmt::format("{}x{} by {}x{}", sizes[0], sizes[1], sizes[1], sizes[2]);
}

double achieved_gflops(const OperatorLimit& operation) {
  return operation.seconds > 0 ? static_cast<double>(operation.flops) / operation.seconds / kGiga : 0;
}

class Computing {
 public:
  Computing(const Evidence& evidence, const Analysis& analysis)
      : roofline_(evidence.roofline), what_if_(analysis.what_if) {
    double samples = 0;
    for (const RankProfile& rank : evidence.run.ranks) samples += static_cast<double>(rank.counts().samples);
    if (roofline_.samples > 0 && !evidence.run.ranks.empty()) {
      batches_ = samples / static_cast<double>(evidence.run.ranks.size()) / static_cast<double>(roofline_.samples);
    }
  }

  std::vector<Finding> find() {
    if (!roofline_.limits || roofline_.operators.empty()) return {};
    add_predicted("bf16", "float32", "products of matrices and convolutions are computed in float32", "");
    add_predicted("channels_last", "contiguous", "convolutions read their images plane by plane (contiguous)",
                  ", or auto, which tries both");
    add_small_operators();
    add_small_batch();
    add_odd_sizes();
    add_slow_operators();
    return std::move(found_);
  }

 private:
  // `lost_s`: of the counted batch.
  void add(const char* id, double lost_s, std::string title, std::string evidence, std::string advice) {
    found_.push_back({.id = id,
                      .title = std::move(title),
                      .evidence = std::move(evidence),
                      .advice = std::move(advice),
                      .seconds = of_loop(lost_s)});
  }

  // Converts seconds of the counted batch to seconds of the whole loop, mean over ranks.
  double of_loop(double seconds) const { return seconds * batches_; }

  double beyond_limit_s(const OperatorLimit& operation) const {
    const auto limit = limit_gflops_of(roofline_, operation, operation.dtype);
    return limit ? std::max(0.0, operation.seconds - static_cast<double>(operation.flops) / (*limit * kGiga)) : 0;
  }

  bool is_slow(const OperatorLimit& operation) const {
    const auto limit = limit_gflops_of(roofline_, operation, operation.dtype);
    return limit && achieved_gflops(operation) < kSlow * *limit && !is_bound_by_calls(operation);
  }

  std::string rate_text(const OperatorLimit& operation) const {
    const auto limit = limit_gflops_of(roofline_, operation, operation.dtype);
    return fmt::format("{} of {}", amount_text(achieved_gflops(operation) * kGiga, "FLOP/s"),
                       amount_text(limit.value_or(0) * kGiga, "FLOP/s"));
  }

  // `more`: added to the advice to make the predicted change.
  void add_predicted(const char* prediction, const char* id, const std::string& what, const char* more) {
    const auto found = std::find_if(what_if_.changes.begin(), what_if_.changes.end(),
                                    [&](const Prediction& candidate) { return candidate.name == prediction; });
    if (found == what_if_.changes.end()) return;
    const std::vector<std::string> patch = {found->set};
    found_.push_back({.id = id,
                      .title = fmt::format("{}, which takes {}", what, seconds_text(found->saved_s)),
                      .evidence = found->assumption,
                      .advice = fmt::format("set {}{}: a batch is predicted to take {} instead of {}", keys_text(patch),
                                            more, seconds_text(found->step_s), seconds_text(what_if_.step_s)),
                      .patch = patch,
                      .seconds = found->saved_s});
  }

  // Adds the finding of tensors so small that calling their operators takes longer than the work.
  void add_small_operators() {
    double lost_s = 0, work_s = 0;
    std::int64_t calls = 0;
    for (const OperatorLimit& operation : roofline_.operators) {
      if (!is_bound_by_calls(operation)) continue;
      lost_s += operation.seconds - *operation.ideal_s;
      work_s += *operation.ideal_s;
      calls += operation.calls;
    }
    if (calls == 0) return;
    add("small_operators", lost_s,
        fmt::format("calling operators on small tensors takes {}", seconds_text(of_loop(lost_s))),
        fmt::format("{} calls a batch take {}, and their work needs {}: the rest is the same for tensors of any size",
                    count_text(calls), seconds_text(lost_s + work_s), seconds_text(work_s)),
        "raise hyperparameters.global_batch_size: as many calls do more work; in Python, torch.compile() makes fewer "
        "calls");
  }

  // Adds the finding that the largest product has so few rows that the arithmetic units wait for the weights.
  void add_small_batch() {
    const OperatorLimit* largest = nullptr;
    double lost_s = 0;
    for (const OperatorLimit& operation : roofline_.operators) {
      const auto sizes = product_sizes(operation);
      if (!sizes) continue;
      if (!largest || operation.flops > largest->flops) largest = &operation;
      if (std::min((*sizes)[0], (*sizes)[1]) < kSmallBatch && is_slow(operation)) lost_s += beyond_limit_s(operation);
    }
    if (!largest || !is_slow(*largest)) return;
    const auto sizes = *product_sizes(*largest);
    // The batch is the rows of the forward product, and the summed dimension of the product for the weights' gradients.
    if (std::min(sizes[0], sizes[1]) >= kSmallBatch || roofline_.samples >= kSmallBatch) return;
    small_batch_ = true;
    add("small_batch", lost_s,
        fmt::format("{} samples a rank are too few for products of matrices, which takes {}", roofline_.samples,
                    seconds_text(of_loop(lost_s))),
        fmt::format("the largest product ({}, {}) runs at {}", largest->name, sizes_text(sizes), rate_text(*largest)),
        "raise hyperparameters.global_batch_size, or use fewer ranks (resources.slots_per_trial)");
  }

  // Adds the finding of odd sizes of layers. Sizes of batches do not count, because they differ from batch to batch.
  void add_odd_sizes() {
    const OperatorLimit* worst = nullptr;
    double lost_s = 0;
    std::int64_t multiple = 8, count = 0;
    for (const OperatorLimit& operation : roofline_.operators) {
      const auto sizes = product_sizes(operation);
      const std::int64_t liked = operation.dtype == "float32" ? 8 : 16;
      if (!sizes || !is_slow(operation) || small_batch_) continue;
      const bool odd = std::ranges::any_of(
          *sizes, [&](std::int64_t size) { return size > liked && size % liked != 0 && size != roofline_.samples; });
      if (!odd) continue;
      ++count;
      lost_s += beyond_limit_s(operation);
      if (worst && beyond_limit_s(operation) <= beyond_limit_s(*worst)) continue;
      worst = &operation;
      multiple = liked;
    }
    if (!worst) return;
    add("odd_sizes", lost_s,
        fmt::format("{} of layers whose sizes are no multiples of {} take {} longer than the machine needs",
                    count == 1 ? "a product" : count_text(count) + " products", multiple,
                    seconds_text(of_loop(lost_s))),
        fmt::format("{} of {} runs at {}", worst->name, sizes_text(*product_sizes(*worst)), rate_text(*worst)),
        fmt::format("round the sizes of layers and vocabularies up to multiples of {}", multiple));
  }

  // Adds the finding of operators that only move data and take far longer than the memory needs for it.
  void add_slow_operators() {
    double lost_s = 0;
    std::string names;
    const OperatorLimit* worst = nullptr;
    for (const OperatorLimit& operation : roofline_.operators) {
      if (operation.flops > 0 || !operation.ideal_s || *operation.ideal_s <= 0 ||
          operation.seconds < kFar * *operation.ideal_s)
        continue;
      if (is_bound_by_calls(operation)) continue;
      lost_s += operation.seconds - *operation.ideal_s;
      if (!worst) worst = &operation;  // the operators are sorted, the slowest first
      if (names.size() < 100) names += (names.empty() ? "" : ", ") + operation.name;
    }
    if (!worst) return;
    add("slow_operators", lost_s,
        fmt::format("operators that only move data take {} longer than memory needs", seconds_text(of_loop(lost_s))),
        fmt::format("{}; {} takes {} a batch for {}, which memory moves in {}", names, worst->name,
                    seconds_text(worst->seconds), amount_text(static_cast<double>(worst->bytes), "B"),
                    seconds_text(*worst->ideal_s)),
        fmt::format("call {} on less data, or put another operator in its place (docs/performance.md has examples)",
                    worst->name));
  }

  const Roofline& roofline_;
  const WhatIf& what_if_;
  double batches_ = 0;  // counted batches in all samples of a rank
  bool small_batch_ = false;
  std::vector<Finding> found_;
};

}  // namespace

// Batch and layer sizes that are not multiples of the hardware's units of computing, so that a part of the computing is
// padding. A GPU's matrix units need multiples of 16 bytes in every dimension of a product (NVIDIA, "Matrix
// Multiplication Background User's Guide", requirements of Tensor Cores). A processor fills its vectors along the
// features of a layer and computes rows of the batch one by one, so there the batch does not count.
//
// A layer's weight is its number of parameters, which is its computing for a sample (a convolution: for a pixel). So a
// few odd sizes that data dictate (a colour channel, ten classes) do not trigger anything by themselves.
Judgement dimension_multiples() {
  return {.id = "DimensionMultiples",
          .text =
              "Batch and layer sizes that are not multiples of the number of elements that the hardware computes at "
              "once.",
          .group = "model",
          .unit = "sizes",
          .title =
              "Looks for layers and batches whose sizes are no multiples of what the hardware computes at once; "
              "the rest is padding.",
          .advice = "Round layer sizes, vocabularies and batches up to the multiple.",
          .parameters = {real("threshold", "Percentage of the computing that may be padding.", 5),
                         whole("multiple", "The number of elements; 0: the number that suits the hardware.", 0,
                               {0, 65536})},
          .judge = judge_dimensions};
}

// Training in 32 bits on hardware that computes several times as fast in 16 bits: GPUs of compute capability 7.0 and
// above (Tensor Cores), processors with bfloat16 products (AVX-512 BF16, AMX, SVE's). The rule does not see tensors
// that a trial casts by itself.
Judgement mixed_precision() {
  return {.id = "MixedPrecision",
          .group = "model",
          .unit = "runs",
          .title =
              "Looks at whether a run computes in 32 bits on hardware that computes in 16 much faster. What a "
              "trial casts by itself is not seen.",
          .judge = judge_precision};
}

// An optimizer that updates each parameter with several small operations takes ten times as long as a fused one.
Judgement fused_optimizer() {
  return {.id = "FusedOptimizer",
          .group = "model",
          .unit = "runs",
          .title = "Looks at whether the optimizer updates all parameters at once.",
          .advice = "Hand dtrain's own optimizer to wrap_optimizer(): it is fused.",
          .judge = judge_optimizer};
}

// Finds operators that compute slower than the machine's limits allow.
std::vector<Finding> find_computing(const Run& run) {
  if (is_throttled(run.evidence)) return {};  // computing is as slow as the quota makes it
  return Computing(run.evidence, run.analysis).find();
}

}  // namespace dtrain::analysis::findings
