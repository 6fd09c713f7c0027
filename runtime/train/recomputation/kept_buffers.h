// Buffers that a part of the model writes when it is computed (the running statistics of a batch normalization): they
// move once a batch, also where the part is computed a second time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

namespace dtrain::train {

// The model whose buffers count, for the parts that the calling thread computes from now on.
void watch_buffers_of(const std::shared_ptr<torch::nn::Module>& model);

// Which buffers a computation writes.
class WrittenBuffers {
 public:
  // The computation begins, and has ended.
  void begin();
  void end();
  // Autograd has saved a tensor. Kernels of batch normalization write their statistics without a new version, but save
  // them.
  void saved(const at::Tensor& tensor);
  // All buffers of the modules of which some were written.
  const std::vector<at::Tensor>& buffers() const { return written_; }

 private:
  struct Watched {
    at::Tensor buffer;
    std::int64_t version = 0;
    bool written = false;
    std::size_t module = 0;
  };
  std::vector<Watched> watched_;
  std::vector<at::Tensor> written_;
};

// While it lives, these buffers may be written. Afterwards they have the values from before.
class KeepBuffers {
 public:
  explicit KeepBuffers(const std::vector<at::Tensor>& buffers);
  ~KeepBuffers();
  KeepBuffers(const KeepBuffers&) = delete;
  KeepBuffers& operator=(const KeepBuffers&) = delete;

 private:
  const std::vector<at::Tensor>& buffers_;
  std::vector<at::Tensor> values_;
};

}  // namespace dtrain::train
