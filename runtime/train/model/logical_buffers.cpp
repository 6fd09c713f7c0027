#include "model/logical_buffers.h"

#include <ATen/core/grad_mode.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

LogicalBuffers::LogicalBuffers(const torch::nn::Module& model, const rank::LogicalRanks& ranks) : model_(model) {
  if (ranks.count() == 1) return;
  of_ranks_.resize(static_cast<std::size_t>(ranks.count()));
  for (auto& buffers : of_ranks_) {
    buffers = buffers_of_model();
    for (Buffer& buffer : buffers) buffer.value = buffer.value.clone();
  }
}

std::vector<LogicalBuffers::Buffer> LogicalBuffers::buffers_of_model() const {
  std::vector<Buffer> buffers;
  for (const auto& item : model_.named_buffers()) {
    if (item.value().defined()) buffers.push_back({item.key(), item.value().detach()});
  }
  return buffers;
}

namespace {

[[noreturn]] void fail_other_form(const std::string& name) {
  throw Error("the model has changed the form of its buffer '" + name + "'",
              "with reproducibility.virtual_ranks buffers keep their shape and type; only their values may change");
}

// Copies the values of `from` to the buffers of the same names.
void copy_buffers(const auto& from, const auto& to) {
  const at::NoGradGuard no_grad;
  if (from.size() != to.size()) fail_other_form(from.size() > to.size() ? from.back().name : to.back().name);
  for (std::size_t i = 0; i < from.size(); ++i) {
    at::Tensor value = to[i].value;
    const bool fits = from[i].name == to[i].name && from[i].value.sizes() == value.sizes() &&
                      from[i].value.scalar_type() == value.scalar_type();
    if (!fits) fail_other_form(from[i].name);
    value.copy_(from[i].value);
  }
}

}  // namespace

void LogicalBuffers::load(std::size_t index) {
  if (!of_ranks_.empty()) copy_buffers(of_ranks_[index], buffers_of_model());
}

void LogicalBuffers::store(std::size_t index) {
  if (!of_ranks_.empty()) copy_buffers(buffers_of_model(), of_ranks_[index]);
}

void LogicalBuffers::store_for_all() {
  for (std::size_t i = 0; i < of_ranks_.size(); ++i) store(i);
}

void LogicalBuffers::visit(std::size_t index, StateVisitor& visitor) {
  const std::vector<Buffer> buffers = of_ranks_.empty() ? buffers_of_model() : of_ranks_[index];
  for (const Buffer& buffer : buffers) {
    visitor.tensor("buffers/" + buffer.name, buffer.value.is_complex() ? at::view_as_real(buffer.value) : buffer.value);
  }
}

}  // namespace dtrain::train
