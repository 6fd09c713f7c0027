#include "model/parameter_watch.h"

#include <algorithm>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

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

std::uint64_t digest_of(const at::Tensor& dense) {
  if (!dense.is_cpu()) return digest_of(dense.detach().to(at::kCPU));
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  const std::size_t bytes = dense.nbytes();
  std::uint64_t lanes[4] = {1, 2, 3, 4};  // four independent products at a time
  std::size_t at = 0;
  for (; at + sizeof lanes <= bytes; at += sizeof lanes) {
    std::uint64_t words[4];
    std::memcpy(words, data + at, sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * kFactor + (lanes[i] >> 32);
  }
  std::uint64_t digest = bytes;
  for (const std::uint64_t lane : lanes) digest = (digest ^ lane ^ (lane >> 29)) * kFactor;
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
