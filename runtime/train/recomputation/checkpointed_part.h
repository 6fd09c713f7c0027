// A part of the model of which backward keeps only the inputs: dtrain::checkpoint().
//
// As torch.utils.checkpoint does with use_reentrant=False, forward builds the usual graph of autograd, whose nodes save
// a number in the place of each tensor. The first node of the part that backward comes to has the part computed again;
// what that saves, in the same order, is what the numbers stand for. So backward runs once through one graph: a
// parameter's gradient is complete when its hook is called, wherever else the parameter is used, and buckets leave in
// the usual order. (A backward inside the backward, as in use_reentrant=True, would add to the gradients of parameters
// more than once, and after their buckets have left.)
//
// One thread computes at a time: what autograd's threads want of any part waits for it.
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
  // In run(): autograd saves a tensor. Its number.
  std::size_t number(const at::Tensor& tensor);
  // What was saved under this number, each time computed again. In backward.
  at::Tensor value(std::size_t number);
  // The node is gone: nobody will ask for it.
  void forget(std::size_t number);

 private:
  class Recomputation;
  struct Saved {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    at::Device device;
    bool wanted = true;
    at::Tensor value;           // between the recomputation and its use
    std::uint32_t version = 0;  // its version when it was saved
  };
  void recompute();

  CheckpointedFunction function_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  ForwardState state_;
  WrittenBuffers buffers_;
  std::vector<Saved> saved_;
  bool complete_ = false;  // run() has ended
};

}  // namespace dtrain::train
