#include "model/flat_parameters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

// The device of the model's parameters, which train on one.
c10::Device device_of(const torch::nn::Module& model) {
  std::optional<c10::Device> device;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    if (!device) device = tensor.device();
    if (tensor.device() == *device) continue;
    throw ConfigError("parameter '" + item.key() + "' is on " + tensor.device().str() + ", others on " + device->str(),
                      "leave the model where context.wrap_model() puts it: one rank trains on one device");
  }
  return device.value_or(at::kCPU);
}

std::int64_t padded_elements(std::int64_t elements, std::int64_t element_size, std::int64_t alignment) {
  const std::int64_t step = alignment / element_size;
  return (elements + step - 1) / step * step;
}

struct MemoryExtent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::string name;
  bool trainable = false;
};

MemoryExtent extent_of(const std::string& name, const at::Tensor& tensor) {
  std::int64_t last = 0;  // the highest element
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * tensor.itemsize(), name, tensor.requires_grad()};
}

// Laid out flat, tensors that share a part of their memory would no longer share it.
void refuse_partial_overlap(std::vector<MemoryExtent> extents) {
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const MemoryExtent* longest = nullptr;            // of those before, the one that ends last
  const MemoryExtent* longest_trainable = nullptr;  // the same of those that move
  for (const MemoryExtent& extent : extents) {
    const MemoryExtent* other = extent.trainable ? longest : longest_trainable;
    if (other && extent.begin < other->end) {
      throw ConfigError("'" + other->name + "' and '" + extent.name + "' of the model share a part of their memory",
                        "give each its own (clone()), or make one a whole view of the other in the same shape");
    }
    if (!longest || longest->end < extent.end) longest = &extent;
    if (extent.trainable && (!longest_trainable || longest_trainable->end < extent.end)) longest_trainable = &extent;
  }
}

bool is_dense_memory(const at::Tensor& buffer) {
  return buffer.defined() && buffer.layout() == at::kStrided && buffer.numel() > 0;
}

// The parameter that is the same memory as a buffer.
std::vector<NamedParameter>::iterator owner_of(const at::Tensor& buffer, std::vector<NamedParameter>& parameters) {
  if (!is_dense_memory(buffer)) return parameters.end();
  return std::find_if(parameters.begin(), parameters.end(),
                      [&](const auto& p) { return same_memory(p.tensor, buffer); });
}

}  // namespace

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.const_data_ptr() != nullptr && a.const_data_ptr() == b.const_data_ptr() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model) {
  std::vector<NamedParameter> result;
  std::map<const at::TensorImpl*, std::size_t> seen;
  std::multimap<const void*, std::size_t> places;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const auto [known, is_new] = seen.try_emplace(tensor.unsafeGetTensorImpl(), result.size());
    if (!is_new) {
      result[known->second].names.push_back(item.key());
      continue;
    }
    const auto [first, last] = places.equal_range(tensor.const_data_ptr());
    const auto same =
        std::find_if(first, last, [&](const auto& p) { return same_memory(result[p.second].tensor, tensor); });
    if (same == last) {
      places.emplace(tensor.const_data_ptr(), result.size());
      result.push_back({{item.key()}, tensor, {}});
      continue;
    }
    NamedParameter& owner = result[same->second];
    known->second = same->second;
    owner.names.push_back(item.key());
    owner.aliases.push_back(tensor);
    if (tensor.requires_grad() && !owner.tensor.requires_grad()) std::swap(owner.tensor, owner.aliases.back());
  }
  return result;
}

void refuse_partial_overlap(const torch::nn::Module& model) {
  auto named = distinct_parameters(model);
  std::vector<MemoryExtent> extents;
  for (const auto& [names, tensor, aliases] : named) {
    if (tensor.numel() > 0) extents.push_back(extent_of(names.front(), tensor));
  }
  for (const auto& item : model.named_buffers()) {
    if (is_dense_memory(item.value()) && owner_of(item.value(), named) == named.end())
      extents.push_back(extent_of(item.key(), item.value()));
  }
  refuse_partial_overlap(std::move(extents));
}

FlatParameters::FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator)
    : memory_(communicator, device_of(model)) {
  auto named = distinct_parameters(model);
  std::reverse(named.begin(), named.end());
  refuse_partial_overlap(model);
  for (const auto& item : model.named_buffers()) {
    const auto owner = owner_of(item.value(), named);
    if (owner != named.end() && !item.value().is_same(owner->tensor)) owner->aliases.push_back(item.value());
  }
  std::vector<std::int64_t> used;
  for (const auto& [names, tensor, aliases] : named) {
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
    const std::int64_t padded = padded_elements(tensor.numel(), group->element_size, memory_.alignment());
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = names.front();
    parameter.tensor = tensor;
    parameter.group = index;
    parameter.offset = used[index];
    parameter.padded = padded;
    for (const at::Tensor& alias : aliases)
      (alias.requires_grad() ? parameter.tied : parameter.aliases).push_back(alias);
    used[index] += padded;
  }
  if (parameters_.empty()) {
    throw ConfigError("the model has no parameter that requires gradients",
                      "hand a model with trainable parameters to wrap_model()");
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.values = memory_.own(used[g], group.dtype);
    FlatMemory::Block block = memory_.exchanged(used[g], group.dtype);
    group.gradients = std::move(block.tensor);
    group.memory = std::move(block.buffer);
  }
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    Group& group = groups_[parameter.group];
    const auto sizes = parameter.tensor.sizes().vec();
    const auto strides = parameter.tensor.strides().vec();
    group.values.as_strided(sizes, strides, parameter.offset).copy_(parameter.tensor);
    parameter.gradient = group.gradients.as_strided(sizes, strides, parameter.offset);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) place_values(g, groups_[g].values);
}

void FlatParameters::place_values(std::size_t index, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  groups_[index].values = memory;
  for (Parameter& parameter : parameters_) {
    if (parameter.group != index) continue;
    const auto values = [&](const at::Tensor& like) {
      return memory.as_strided(like.sizes(), like.strides(), parameter.offset);
    };
    parameter.tensor.set_data(values(parameter.tensor));
    for (auto* others : {&parameter.tied, &parameter.aliases}) {
      for (at::Tensor& other : *others) other.set_data(values(other));
    }
  }
}

bool FlatParameters::in_place(const Parameter& parameter) const {
  const Group& group = groups_[parameter.group];
  const std::byte* const place = FlatMemory::address(group.values, parameter.offset);
  const auto lies_there = [&](const at::Tensor& tensor) {
    return tensor.numel() == 0 || tensor.const_data_ptr() == place;
  };
  return lies_there(parameter.tensor) && std::all_of(parameter.tied.begin(), parameter.tied.end(), lies_there);
}

void FlatParameters::visit(StateVisitor& visitor) {
  for (const Parameter& parameter : parameters_) visitor.tensor(parameter.name, parameter.tensor.detach());
}

void FlatParameters::visit_like(StateVisitor& visitor, std::string_view name, std::size_t group,
                                const at::Tensor& flat) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    visitor.tensor(std::string(name) + "/" + parameter.name,
                   flat.as_strided(parameter.tensor.sizes(), parameter.tensor.strides(), parameter.offset));
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
