#include "model/model_report.h"

#include <algorithm>
#include <functional>
#include <map>

#include "dtrain/base/choices.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostShapes = 1000;

}  // namespace

std::string dtype_name(at::ScalarType type) {
  if (type == at::kFloat) return "float32";
  if (type == at::kDouble) return "float64";
  if (type == at::kHalf) return "float16";
  if (type == at::kBFloat16) return "bfloat16";
  if (type == at::kLong) return "int64";
  return c10::toString(type);
}

Json describe_model(const FlatParameters& parameters) {
  const auto all = parameters.parameters();
  std::map<std::string, std::int64_t> by_type;
  std::vector<std::int64_t> sizes;
  for (const auto& parameter : all) {
    by_type[dtype_name(parameter.tensor.scalar_type())] += parameter.tensor.numel();
    sizes.push_back(parameter.tensor.numel());
  }
  std::int64_t least = 0;
  if (sizes.size() > kMostShapes) {
    std::nth_element(sizes.begin(), sizes.begin() + kMostShapes, sizes.end(), std::greater<>());
    least = sizes[kMostShapes] + 1;
  }
  Json shapes = Json::array();
  for (const auto& parameter : all) {
    if (parameter.tensor.numel() < least) continue;
    shapes.push_back({{"name", parameter.name}, {"sizes", parameter.tensor.sizes().vec()}});
  }
  const auto most = std::max_element(by_type.begin(), by_type.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return {{"parameters", parameters.total_elements()},
          {"bytes", parameters.total_bytes()},
          {"tensors", all.size()},
          {"dtype", most == by_type.end() ? Json() : Json(most->first)},
          {"shapes", std::move(shapes)}};
}

Json describe_optimizer(const std::optional<Optimizer>& optimizer, const FlatParameters& parameters) {
  if (!optimizer) return nullptr;
  // FlatOptimizer updates all parameters of a type at once.
  const bool fused = std::visit([](const auto& held) { return held.kFused; }, *optimizer);
  Json result = {{"kind", word_of(*optimizer)}, {"fused", fused}};
  const auto& groups = parameters.groups();
  const auto most = std::max_element(groups.begin(), groups.end(),
                                     [](const auto& a, const auto& b) { return a.values.numel() < b.values.numel(); });
  if (most == groups.end()) return result;
  const auto update = std::visit([](const auto& held) { return held.make_update(); }, *optimizer);
  const at::ScalarType updated = most->dtype == at::kDouble ? at::kDouble : at::kFloat;  // narrower types have a copy
  const UpdateKernel kernel = update->kernel(most->values.device().type(), updated);
  result["kernel"] = kernel.whose;
  if (!kernel.why.empty()) result["kernel_reason"] = kernel.why;
  return result;
}

Json describe_groups(std::span<const ParameterGroup> groups, const FlatOptimizer& optimizer) {
  Json result = Json::array();
  const auto sizes = optimizer.group_sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    result.push_back({{"name", i == 0 ? "other parameters" : groups[i - 1].name},
                      {"tensors", sizes[i].parameters},
                      {"parameters", sizes[i].elements},
                      {"lr", sizes[i].rate}});
    if (i == 0) continue;
    if (const auto& norm = groups[i - 1].max_gradient_norm) result.back()["max_gradient_norm"] = *norm;
    if (const auto& value = groups[i - 1].max_gradient_value) result.back()["max_gradient_value"] = *value;
  }
  return result;
}

std::optional<std::string> first_nan_parameter(const FlatParameters& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters.parameters()) {
    if (parameters.values_of(parameter).sum().isnan().item<bool>()) return parameter.name;
  }
  return std::nullopt;
}

}  // namespace dtrain::train
