// Keeps buffers that a part of the model writes (the running statistics of a batch normalization) from changing twice
// in a batch when the part is computed a second time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

namespace dtrain::train {

// Sets the model whose buffers are watched in the parts that the calling thread computes from now on.
void watch_buffers_of(const std::shared_ptr<torch::nn::Module>& model);

// Finds the buffers that a computation writes.
class WrittenBuffers {
 public:
  // Called at the begin and at the end of the computation.
  void begin();
  void end();
  // Called when autograd saves a tensor. Kernels of batch normalization write their statistics without a new version,
  // but save them.
  void saved(const at::Tensor& tensor);
  // Returns all buffers of modules with a written buffer.
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

// These buffers may be written during its life. The destructor restores their values.
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
