// The buffers of a model (running statistics of batch norms) as rank 0 has them, on all ranks, after each step of a
// program that has the loop itself: it may validate at any time. So it is with DistributedDataParallel, which shares
// them before each forward pass. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dtrain/comm/communicator.h"

namespace dtrain::train {

class SharedBuffers {
 public:
  // `model` and the communicators outlive it. The ranks' buffers are the same.
  SharedBuffers(const torch::nn::Module& model, comm::Communicator& communicator,
                comm::Communicator& device_communicator);
  // Gives all ranks rank 0's values of the buffers that any rank has written since the last call. Collective.
  void share();

 private:
  // Of rank 0's values of these, with so many bytes in all.
  void broadcast_on_host(const std::vector<at::Tensor>& buffers, std::size_t bytes);
  void broadcast_on_device(const std::vector<at::Tensor>& buffers, std::size_t bytes);

  std::vector<at::Tensor> buffers_;
  std::vector<std::int64_t> versions_;  // of each, when its values were shared; -1: its version says nothing
  std::vector<std::uint8_t> written_;
  std::vector<std::byte> packed_;
  comm::Communicator& communicator_;
  comm::Communicator& device_communicator_;
};

}  // namespace dtrain::train
