#include "flat_parameters.h"

#include <algorithm>
#include <map>

#include "dtrain/base/error.h"
#include "private_memory.h"

namespace dtrain::train {

namespace {

constexpr std::int64_t kAlignment = 64;  // bytes: a cache line, and what the widest vector loads like

std::int64_t padded_elements(std::int64_t elements, std::int64_t element_size) {
  const std::int64_t step = kAlignment / element_size;
  return (elements + step - 1) / step * step;
}

}  // namespace

comm::DataType comm_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kDouble:
      return comm::DataType::kFloat64;
    default:
      break;
  }
  throw ConfigError(std::string("parameters of type ") + at::toString(type) + " cannot be exchanged yet",
                    "use float32 or float64 parameters");
}

std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model) {
  std::vector<NamedParameter> result;
  std::map<const at::TensorImpl*, std::size_t> seen;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [place, is_new] = seen.try_emplace(item.value().unsafeGetTensorImpl(), result.size());
    if (is_new) {
      result.push_back({{item.key()}, item.value()});
    } else {
      result[place->second].names.push_back(item.key());
    }
  }
  return result;
}

FlatParameters::FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator) {
  auto named = distinct_parameters(model);
  std::reverse(named.begin(), named.end());
  std::vector<std::int64_t> used;
  for (const auto& [names, tensor] : named) {
    if (!tensor.requires_grad()) continue;
    if (!tensor.is_non_overlapping_and_dense()) {
      throw ConfigError("parameter '" + names.front() + "' is not dense in memory", "make it contiguous()");
    }
    comm_type(tensor.scalar_type());
    auto group =
        std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.dtype == tensor.scalar_type(); });
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(),
                             {tensor.scalar_type(), {}, {}, nullptr, static_cast<std::int64_t>(tensor.element_size())});
      used.push_back(0);
    }
    const std::size_t index = group - groups_.begin();
    const std::int64_t padded = padded_elements(tensor.numel(), group->element_size);
    parameters_.push_back({names.front(), tensor, {}, index, used[index], padded});
    used[index] += padded;
  }
  if (parameters_.empty()) {
    throw ConfigError("the model has no parameter that requires gradients",
                      "hand a model with trainable parameters to wrap_model()");
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const auto options = at::TensorOptions().dtype(group.dtype);
    group.values = flat_zeros(used[g], group.dtype);
    group.memory = communicator.allocate(static_cast<std::size_t>(used[g] * group.element_size));
    group.gradients = at::from_blob(group.memory->bytes().data(), {used[g]}, options);
  }
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    Group& group = groups_[parameter.group];
    const auto sizes = parameter.tensor.sizes().vec();
    const auto strides = parameter.tensor.strides().vec();
    at::Tensor values = group.values.as_strided(sizes, strides, parameter.offset);
    values.copy_(parameter.tensor);
    parameter.tensor.set_data(values);
    parameter.gradient = group.gradients.as_strided(sizes, strides, parameter.offset);
  }
}

void FlatParameters::place_values(std::size_t index, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  groups_[index].values = memory;
  for (Parameter& parameter : parameters_) {
    if (parameter.group != index) continue;
    parameter.tensor.set_data(
        memory.as_strided(parameter.tensor.sizes(), parameter.tensor.strides(), parameter.offset));
  }
}

std::int64_t FlatParameters::total_elements() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.tensor.numel();
  return total;
}

std::int64_t FlatParameters::total_bytes() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_)
    total += parameter.tensor.numel() * groups_[parameter.group].element_size;
  return total;
}

}  // namespace dtrain::train
