// A part of the model that keeps only its inputs for backward: dtrain::checkpoint().
//
// As in torch.utils.checkpoint with use_reentrant=False, forward builds the usual graph of autograd, but its nodes save
// a number in the place of each tensor. When backward reaches the first node of the part, the part is computed again;
// the tensors that it then saves, in the same order, are those of the numbers. So backward runs once through one graph:
// a parameter's gradient is complete when its hook is called, wherever else the parameter is used, and buckets leave in
// the usual order. (A backward inside the backward, as in use_reentrant=True, would add to the gradients of parameters
// more than once, and after their buckets have left.)
//
// One thread computes at a time; other threads of autograd wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "dtrain/train/gradient_checkpointing.h"
#include "recomputation/forward_state.h"
#include "recomputation/kept_buffers.h"
#include "recomputation/saved_tensors.h"

namespace dtrain::train {

// Lives as long as a node of the graph refers to it.
class CheckpointedPart final : public SavedTensorKeeper, public std::enable_shared_from_this<CheckpointedPart> {
 public:
  CheckpointedPart(CheckpointedFunction function, const std::vector<at::Tensor>& inputs);

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  // Returns the number for a tensor that autograd saves in run().
  std::size_t number(const at::Tensor& tensor);
  // Returns the tensor that was saved under this number; called in backward. Computes it again each time.
  at::Tensor value(std::size_t number);
  // Called when the node is destroyed, after which the number is not used.
  void forget(std::size_t number);

 private:
  class Recomputation;
  struct Saved {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    at::Device device;
    bool wanted = true;
    at::Tensor value;           // between the recomputation and its use
    std::uint32_t version = 0;  // version of `value` when it was saved
  };
  void recompute();

  CheckpointedFunction function_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  ForwardState state_;
  WrittenBuffers buffers_;
  std::vector<Saved> saved_;
  bool complete_ = false;  // true once run() has ended
};

}  // namespace dtrain::train
