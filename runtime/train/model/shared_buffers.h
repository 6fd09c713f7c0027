// Gives all ranks rank 0's buffers (running statistics of batch norms) after each step of a program that has the loop
// itself, which may validate at any time. DistributedDataParallel likewise shares them before each forward pass.
// Training thread.
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
  // `model` and the communicators outlive this object. The ranks' buffers are the same.
  SharedBuffers(const torch::nn::Module& model, comm::Communicator& communicator,
                comm::Communicator& device_communicator);
  // Gives all ranks rank 0's values of the buffers that any rank has written since the last call. Collective.
  void share();

 private:
  // Broadcast rank 0's values of these buffers, which have `bytes` bytes in all.
  void broadcast_on_host(const std::vector<at::Tensor>& buffers, std::size_t bytes);
  void broadcast_on_device(const std::vector<at::Tensor>& buffers, std::size_t bytes);

  std::vector<at::Tensor> buffers_;
  std::vector<std::int64_t> versions_;  // versions of the buffers when they were shared; -1: versions say nothing
  std::vector<std::uint8_t> written_;
  std::vector<std::byte> packed_;
  comm::Communicator& communicator_;
  comm::Communicator& device_communicator_;
};

}  // namespace dtrain::train
