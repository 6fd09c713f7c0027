// Batch and layer sizes that are not multiples of the hardware's units of computing, so that a part of the computing is
// padding. A GPU's matrix units need multiples of 16 bytes in every dimension of a product (NVIDIA, "Matrix
// Multiplication Background User's Guide", requirements of Tensor Cores). A processor fills its vectors along the
// features of a layer and computes rows of the batch one by one, so there the batch does not count.
//
// A layer's weight is its number of parameters, which is its computing for a sample (a convolution: for a pixel). So a
// few odd sizes that data dictate (a colour channel, ten classes) do not trigger anything by themselves.
#include <algorithm>
#include <numeric>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct DimensionMultiples {
  static constexpr const char* kWord = "DimensionMultiples";
  static constexpr const char* kText =
      "Batch and layer sizes that are not multiples of the number of elements that the hardware computes at once.";
  double threshold = 5;
  std::int64_t multiple = 0;  // elements; 0: what the hardware likes
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the computing that may be padding."}, threshold, kPercent);
    keys.integer({"multiple", "The number of elements; 0: the number that suits the hardware."}, multiple, {0, 65536});
  }
  RuleResult judge(const RuleData& data) const;
};

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

}  // namespace

RuleResult DimensionMultiples::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "model", "sizes",
      "Looks for layers and batches whose sizes are no multiples of what the hardware computes at once; the rest is "
      "padding.",
      "Round layer sizes, vocabularies and batches up to the multiple.");
  const ModelFacts& model = data.model;
  if (model.shapes.empty())
    return not_applicable(std::move(result), "the shapes of the model are not recorded in the plan");
  const std::int64_t liked = multiple > 0 ? multiple : liked_by_hardware(model, data.hosts);
  if (liked <= 0) {
    return not_applicable(std::move(result),
                          "the width of the processor's vectors is not recorded; set "
                          "DimensionMultiples.multiple");
  }
  double needed = 0;
  double computed = 0;
  std::int64_t layers = 0;
  std::int64_t odd = 0;
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
  return result;
}

std::unique_ptr<Rule> make_dimension_multiples() {
  return std::make_unique<RuleOf<DimensionMultiples>>();
}

}  // namespace dtrain::analysis::rules
