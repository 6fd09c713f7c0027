#include "model/flat_parameters.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

// Returns the device of the model's parameters; ConfigError if they are on several.
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

// Finds parameters of layers that normalise, which need float32 for statistics and sums, and are small. The layer's
// class has "Norm" in libtorch's or TorchScript's name: BatchNorm2d, LayerNorm, GroupNorm, InstanceNorm1d, RMSNorm.
std::set<const at::TensorImpl*> normalisation_parameters(const torch::nn::Module& model) {
  std::set<const at::TensorImpl*> found;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (module->name().find("Norm") == std::string::npos) continue;
    for (const at::Tensor& parameter : module->parameters(/*recurse=*/false))
      found.insert(parameter.unsafeGetTensorImpl());
  }
  return found;
}

bool is_convolution_weight(const at::Tensor& tensor) {
  return tensor.dim() == 4 || tensor.dim() == 5;
}

// Returns the same values with the strides of channels_last, also where dimensions of one element leave the strides
// open: libtorch chooses a convolution's kernel by the strides.
at::Tensor in_channels_last(const at::Tensor& weight) {
  const auto strides = weight.dim() == 4 ? c10::get_channels_last_strides_2d(weight.sizes())
                                         : c10::get_channels_last_strides_3d(weight.sizes());
  at::Tensor copy = at::empty_strided(weight.sizes(), strides, weight.options());
  return copy.copy_(weight);
}

// Returns the same elements as a storage of their own: torch.save() writes whole storages, which here means all
// parameters.
at::Tensor with_own_storage(const at::Tensor& dense) {
  c10::DataPtr place(
      dense.mutable_data_ptr(), new at::Tensor(dense), [](void* owner) { delete static_cast<at::Tensor*>(owner); },
      dense.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), dense.nbytes(), std::move(place), /*allocator=*/nullptr,
                             /*resizable=*/false);
  return at::empty({0}, dense.options()).set_(storage, 0, dense.sizes(), dense.strides());
}

bool is_copied(const FlatParameters::Parameter& parameter) {
  return parameter.in_shadow || parameter.copy.defined();
}

std::vector<const at::TensorImpl*> parameter_members(const torch::nn::Module& model) {
  std::vector<const at::TensorImpl*> members;
  for (const at::Tensor& parameter : model.parameters()) members.push_back(parameter.unsafeGetTensorImpl());
  return members;
}

// Sums the version counters, which in-place operations on the tensor and on its detach() raise.
std::uint64_t parameter_versions(const FlatParameters::Parameter& parameter) {
  std::uint64_t sum = parameter.tensor._version();
  for (const auto* others : {&parameter.tied, &parameter.aliases}) {
    for (const at::Tensor& other : *others) sum += other._version();
  }
  return sum;
}

}  // namespace

FlatParameters::FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator,
                               const ParameterTypes& types, bool values_follow)
    : memory_(communicator, device_of(model)) {
  auto named = distinct_parameters(model);
  std::reverse(named.begin(), named.end());
  refuse_partial_overlap(model);
  add_buffers(named, model);
  const std::set<const at::TensorImpl*> in_float32 =
      types.bfloat16 ? normalisation_parameters(model) : std::set<const at::TensorImpl*>();
  std::vector<std::int64_t> used;
  for (const auto& [names, tensor, aliases] : named) {
    if (!tensor.requires_grad()) continue;
    if (!tensor.is_non_overlapping_and_dense()) {
      throw ConfigError("parameter '" + names.front() + "' is not dense in memory", "make it contiguous()");
    }
    const at::ScalarType dtype = tensor.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble) {
      throw ConfigError("parameter '" + names.front() + "' is of type " + at::toString(dtype),
                        at::isComplexType(dtype)
                            ? "hold it as real numbers: a float32 parameter with a last dimension of 2, of which "
                              "forward() makes torch.view_as_complex(parameter)"
                            : "make the model in float32 (or float64), and set optimizations.mixed_precision to "
                              "compute in another type");
    }
    const bool bfloat16 = types.bfloat16 && dtype == at::kFloat && !in_float32.contains(tensor.unsafeGetTensorImpl());
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](const Group& g) { return g.dtype == dtype && g.bfloat16 == bfloat16; });
    if (group == groups_.end()) {
      group =
          groups_.insert(groups_.end(), Group{dtype, bfloat16 && types.gradients ? at::kBFloat16 : dtype, bfloat16});
      group->element_size = static_cast<std::int64_t>(c10::elementSize(group->dtype));
      group->gradient_size = static_cast<std::int64_t>(c10::elementSize(group->gradient_dtype));
      used.push_back(0);
    }
    const std::size_t index = group - groups_.begin();
    const bool equal_parts = group->gradient_size < group->element_size;
    const std::int64_t padded = padded_elements(tensor.numel(), group->gradient_size, memory_.alignment(equal_parts));
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
    if (group.bfloat16) {
      group.shadow = memory_.own(used[g], at::kBFloat16);
    } else if (types.shadow && group.dtype == at::kFloat) {
      group.shadow = memory_.own(used[g], *types.shadow);
    }
    FlatMemory::Block block = memory_.exchanged(used[g], group.gradient_dtype);
    group.gradients = std::move(block.tensor);
    group.memory = std::move(block.buffer);
  }
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    Group& group = groups_[parameter.group];
    const auto sizes = parameter.tensor.sizes().vec();
    const auto strides = parameter.tensor.strides().vec();
    if (!values_follow) group.values.as_strided(sizes, strides, parameter.offset).copy_(parameter.tensor);
    parameter.gradient = group.gradients.as_strided(sizes, strides, parameter.offset);
  }
  refresh();
  for (Parameter& parameter : parameters_) {
    parameter.in_shadow = groups_[parameter.group].bfloat16;
    place(parameter);
  }
}

at::Tensor FlatParameters::values_of(const Parameter& parameter) const {
  return parameter.view_of(groups_[parameter.group].values);
}

at::Tensor FlatParameters::source_of(const Parameter& parameter) const {
  return parameter.in_shadow ? parameter.view_of(groups_[parameter.group].shadow) : values_of(parameter);
}

void FlatParameters::put_into_model(Parameter& parameter, const at::Tensor& lies_at) {
  const at::Tensor view = with_own_storage(lies_at);
  parameter.tensor.set_data(view);
  for (auto* others : {&parameter.tied, &parameter.aliases}) {
    for (at::Tensor& other : *others) other.set_data(view);
  }
  parameter.place = view.const_data_ptr();
}

void FlatParameters::place(Parameter& parameter) {
  put_into_model(parameter, parameter.copy.defined() ? parameter.copy : source_of(parameter));
}

void FlatParameters::place_values(std::size_t index, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  groups_[index].values = memory;
  for (Parameter& parameter : parameters_) {
    if (parameter.group == index) place(parameter);
  }
}

void FlatParameters::place_shadow(std::size_t index, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  groups_[index].shadow = memory;
  for (Parameter& parameter : parameters_) {
    if (parameter.group == index) place(parameter);
  }
}

bool FlatParameters::in_place(const Parameter& parameter) const {
  const auto lies_there = [&](const at::Tensor& tensor) {
    return tensor.numel() == 0 || tensor.const_data_ptr() == parameter.place;
  };
  return lies_there(parameter.tensor) && std::all_of(parameter.tied.begin(), parameter.tied.end(), lies_there);
}

void FlatParameters::number_models(std::span<const std::string> children) {
  for (Parameter& parameter : parameters_) {
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (parameter.name.starts_with(children[i] + ".")) parameter.model = i;
    }
  }
}

void FlatParameters::compute_in_shadow(std::size_t index, bool in_shadow) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = parameters_[index];
  if (parameter.in_shadow == in_shadow) return;
  parameter.in_shadow = in_shadow;
  if (parameter.copy.defined()) parameter.copy = in_channels_last(source_of(parameter));
  place(parameter);
}

void FlatParameters::keep_narrow_gradient(std::size_t index) {
  Parameter& parameter = parameters_[index];
  Group& group = groups_[parameter.group];
  if (!group.narrow_gradients.defined()) {
    group.narrow_gradients = memory_.own(group.gradients.numel(), group.shadow.scalar_type());
  }
  parameter.narrow_gradient = true;
  parameter.gradient = parameter.view_of(group.narrow_gradients);
}

std::int64_t FlatParameters::release_gradients(const FlatRange& range) {
  const Group& group = groups_[range.group];
  const auto first = static_cast<std::size_t>(range.begin * group.gradient_size);
  const auto bytes = static_cast<std::size_t>(range.size() * group.gradient_size);
  return static_cast<std::int64_t>(group.memory->release(first, bytes));
}

void FlatParameters::clear_and_release_gradients(const FlatRange& range) {
  const at::Tensor& flat = groups_[range.group].gradients;
  if (release_gradients(range) == 0) return FlatMemory::clear(flat, range.begin, range.size());
  // Clears the bytes before and after the whole pages.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(FlatMemory::address(flat, range.begin));
  const auto end = reinterpret_cast<std::uintptr_t>(FlatMemory::address(flat, range.end));
  const auto elements = [&](std::uintptr_t bytes) { return static_cast<std::int64_t>(bytes / flat.element_size()); };
  const std::int64_t before = elements((page - begin % page) % page), behind = elements(end % page);
  FlatMemory::clear(flat, range.begin, before);
  FlatMemory::clear(flat, range.end - behind, behind);
}

void FlatParameters::mark_changed(std::span<const std::uint8_t> changed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (changed.empty() || changed[i]) parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void FlatParameters::set_channels_last(bool on) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    if (!is_convolution_weight(parameter.gradient) || parameter.copy.defined() == on) continue;
    parameter.copy = on ? in_channels_last(source_of(parameter)) : at::Tensor();
    place(parameter);
  }
}

bool FlatParameters::has_convolution_weights() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const Parameter& parameter) { return is_convolution_weight(parameter.gradient); });
}

void FlatParameters::refresh_copies() {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    if (parameter.copy.defined()) parameter.copy.copy_(source_of(parameter));
  }
}

void FlatParameters::refresh() {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    if (group.shadow.defined()) group.shadow.copy_(group.values);
  }
  refresh_copies();
}

bool FlatParameters::computes_with_copies() const {
  return std::any_of(parameters_.begin(), parameters_.end(), is_copied);
}

void FlatParameters::take_over(std::size_t index) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = parameters_[index];
  if (!is_copied(parameter)) return;
  values_of(parameter).copy_(parameter.tensor.detach());
}

void FlatParameters::take_over(const std::vector<std::uint8_t>& written) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i]) take_over(i);
  }
}

FlatParameters::ValuesInModel::ValuesInModel(FlatParameters& parameters) : parameters_(parameters) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_.parameters_) put_into_model(parameter, parameters_.values_of(parameter));
}

FlatParameters::ValuesInModel::ValuesInModel(FlatParameters& parameters, const std::vector<at::Tensor>& instead,
                                             bool as_computed)
    : parameters_(parameters) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_.parameters_) {
    at::Tensor view = parameter.view_of(instead[parameter.group]);
    if (as_computed && parameter.in_shadow) view = view.to(parameters_.groups_[parameter.group].shadow.scalar_type());
    if (as_computed && parameter.copy.defined()) view = in_channels_last(view);
    put_into_model(parameter, view);
  }
}

FlatParameters::ValuesInModel::~ValuesInModel() {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_.parameters_) parameters_.place(parameter);
}

void FlatParameters::visit(StateVisitor& visitor) {
  for (const Parameter& parameter : parameters_) visitor.tensor(parameter.name, values_of(parameter));
  if (visitor.replaces()) refresh();
}

void FlatParameters::visit_like(StateVisitor& visitor, std::string_view name, std::size_t group,
                                const at::Tensor& flat) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    visitor.tensor(std::string(name) + "/" + parameter.name, parameter.view_of(flat));
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

std::uint64_t digest_of(const at::Tensor& dense) {
  if (!dense.is_cpu()) return digest_of(dense.detach().to(at::kCPU));
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  const std::size_t bytes = dense.nbytes();
  const auto mixed = [&](std::uint64_t lane, std::size_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, sizeof word);
    return (lane ^ word) * kFactor + (lane >> 32);
  };
  // Four independent products at a time. An array of lanes would become vectors, which have no such product.
  std::uint64_t a = 1, b = 2, c = 3, d = 4;
  std::size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    a = mixed(a, at);
    b = mixed(b, at + 8);
    c = mixed(c, at + 16);
    d = mixed(d, at + 24);
  }
  std::uint64_t digest = bytes;
  for (const std::uint64_t lane : {a, b, c, d}) digest = (digest ^ lane ^ (lane >> 29)) * kFactor;
  for (; at < bytes; ++at) digest = (digest ^ static_cast<std::uint64_t>(data[at])) * kFactor;
  return digest ^ (digest >> 32);
}

ParameterWatch::ParameterWatch(const torch::nn::Module& model, const FlatParameters& parameters)
    : model_(model), parameters_(parameters), members_(parameter_members(model)) {
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) frozen_.emplace_back(item.key(), item.value());
  }
}

void ParameterWatch::check() const {
  for (const auto& parameter : parameters_.parameters()) {
    if (parameters_.in_place(parameter)) continue;
    throw Error("parameter '" + parameter.name + "' no longer lies where training updates it",
                "convert, move or replace parameters (model->to(), set_data()) before the trial's constructor returns");
  }
  for (const auto& [name, tensor] : frozen_) {
    if (!tensor.requires_grad()) continue;
    throw Error(
        "parameter '" + name + "' was frozen when training began and is not any more: it would not train",
        "let it require gradients from the start, and use its detach() in forward() as long as it is to stay as "
        "it is");
  }
}

void ParameterWatch::check_members() const {
  if (parameter_members(model_) == members_) return;
  for (const auto& item : model_.named_parameters()) {
    if (std::find(members_.begin(), members_.end(), item.value().unsafeGetTensorImpl()) != members_.end()) continue;
    throw Error("parameter '" + item.key() + "' has joined the model since training began: it would not train",
                "register all parameters before the trial's constructor returns");
  }
  throw Error("a parameter has left the model since training began", "keep the model as it was handed to wrap_model()");
}

void ParameterWatch::note(bool look_closer) {
  versions_.clear();
  digests_.clear();
  for (const auto& parameter : parameters_.parameters()) {
    versions_.push_back(parameter_versions(parameter));
    if (look_closer) digests_.push_back(digest_of(parameter.tensor));
  }
}

bool ParameterWatch::written(std::size_t index) const {
  const auto& parameter = parameters_.parameters()[index];
  return parameter_versions(parameter) != versions_[index] ||
         (!digests_.empty() && digest_of(parameter.tensor) != digests_[index]);
}

bool ParameterWatch::any_written() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    if (written(i)) return true;
  }
  return false;
}

std::vector<std::uint8_t> ParameterWatch::written() const {
  std::vector<std::uint8_t> result;
  for (std::size_t i = 0; i < versions_.size(); ++i) result.push_back(written(i) ? 1 : 0);
  return result;
}

}  // namespace dtrain::train
