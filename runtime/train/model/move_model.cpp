#include "model/move_model.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "model/flat_parameters.h"

namespace dtrain::train {

namespace {

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

}  // namespace

void move_model(torch::nn::Module& model, c10::Device device) {
  if (device.is_cpu()) return;
  refuse_partial_overlap(model);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) all.push_back(buffer);
  std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // as it was, and where it is now
  for (at::Tensor& tensor : all) {
    if (!tensor.defined() || tensor.device() == device) continue;
    at::Tensor there;
    for (const auto& [before, now] : moved) {
      if (is_same_view(before, tensor)) there = now;
    }
    if (!there.defined()) {
      there = tensor.to(device);
      moved.emplace_back(tensor.detach(), there);
    }
    tensor.set_data(there);
  }
}

}  // namespace dtrain::train
