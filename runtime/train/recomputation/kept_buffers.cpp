#include "recomputation/kept_buffers.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

namespace dtrain::train {

namespace {
thread_local std::weak_ptr<torch::nn::Module> watched_model;
}

void watch_buffers_of(const std::shared_ptr<torch::nn::Module>& model) {
  watched_model = model;
}

void WrittenBuffers::begin() {
  watched_.clear();
  const auto model = watched_model.lock();
  if (!model) return;
  std::size_t module = 0;
  model->apply([&](torch::nn::Module& part) {
    for (const at::Tensor& buffer : part.buffers(/*recurse=*/false)) {
      if (buffer.defined() && !buffer.is_inference()) watched_.push_back({buffer, buffer._version(), false, module});
    }
    ++module;
  });
}

void WrittenBuffers::saved(const at::Tensor& tensor) {
  if (tensor.requires_grad()) return;
  for (Watched& one : watched_) one.written = one.written || one.buffer.is_same(tensor);
}

void WrittenBuffers::end() {
  std::set<std::size_t> modules;
  for (const Watched& one : watched_) {
    if (one.written || one.buffer._version() != one.version) modules.insert(one.module);
  }
  for (const Watched& one : watched_) {
    if (modules.contains(one.module)) written_.push_back(one.buffer);
  }
  watched_.clear();
}

KeepBuffers::KeepBuffers(const std::vector<at::Tensor>& buffers) : buffers_(buffers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers) values_.push_back(buffer.clone());
}

KeepBuffers::~KeepBuffers() {
  try {
    const at::NoGradGuard no_grad;
    // The copy bypasses the buffer's version counter, for autograd may have saved the buffer for backward.
    for (std::size_t i = 0; i < values_.size(); ++i) buffers_[i].variable_data().copy_(values_[i]);
  } catch (const std::exception&) {  // a device that has failed: the computation has already thrown
  }
}

}  // namespace dtrain::train
