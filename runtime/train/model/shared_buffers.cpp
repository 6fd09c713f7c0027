#include "model/shared_buffers.h"

#include <cstring>
#include <string>

#include <ATen/ATen.h>

namespace dtrain::train {

namespace {

// True for the statistics of libtorch's norms, which are written without a new version.
bool is_written_unseen(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

std::int64_t version_of(const at::Tensor& buffer) {
  return static_cast<std::int64_t>(buffer._version());
}

}  // namespace

SharedBuffers::SharedBuffers(const torch::nn::Module& model, comm::Communicator& communicator,
                             comm::Communicator& device_communicator)
    : communicator_(communicator), device_communicator_(device_communicator) {
  for (const auto& item : model.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || buffer.layout() != at::kStrided || buffer.numel() == 0 || buffer.is_inference()) continue;
    buffers_.push_back(buffer);
    versions_.push_back(is_written_unseen(item.key()) ? -1 : version_of(buffer));
  }
  written_.resize(buffers_.size());
}

void SharedBuffers::share() {
  if (communicator_.world_size() == 1 || buffers_.empty()) return;
  for (std::size_t i = 0; i < buffers_.size(); ++i) written_[i] = version_of(buffers_[i]) != versions_[i] ? 1 : 0;
  communicator_.all_reduce(written_.data(), written_.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax})
      .wait();
  std::vector<at::Tensor> written;
  std::size_t size = 0;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (!written_[i]) continue;
    written.push_back(buffers_[i].detach());
    size += written.back().nbytes();
  }
  if (written.empty()) return;
  written.front().is_cpu() ? broadcast_on_host(written, size) : broadcast_on_device(written, size);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (versions_[i] >= 0) versions_[i] = version_of(buffers_[i]);
  }
}

// Copies bytes, without an operator call for each of up to a hundred buffers.
void SharedBuffers::broadcast_on_host(const std::vector<at::Tensor>& buffers, std::size_t bytes) {
  const at::NoGradGuard no_grad;
  packed_.resize(bytes);
  const bool is_root = communicator_.rank() == 0;
  std::byte* place = packed_.data();
  for (const at::Tensor& one : buffers) {
    if (is_root) std::memcpy(place, one.contiguous().const_data_ptr(), one.nbytes());
    place += one.nbytes();
  }
  communicator_.broadcast(packed_.data(), bytes, comm::DataType::kUint8, 0).wait();
  if (is_root) return;
  place = packed_.data();
  for (at::Tensor one : buffers) {
    if (one.is_contiguous()) {
      std::memcpy(one.data_ptr(), place, one.nbytes());
    } else {
      one.copy_(at::from_blob(place, one.sizes(), one.options()));
    }
    place += one.nbytes();
  }
}

void SharedBuffers::broadcast_on_device(const std::vector<at::Tensor>& buffers, std::size_t bytes) {
  const at::NoGradGuard no_grad;
  const bool is_root = communicator_.rank() == 0;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& one : buffers) {
    if (is_root) parts.push_back(one.contiguous().view({-1}).view(at::kByte));
  }
  const at::Tensor packed =
      is_root ? at::cat(parts)
              : at::empty({static_cast<std::int64_t>(bytes)}, buffers.front().options().dtype(at::kByte));
  device_communicator_.broadcast(packed.data_ptr(), bytes, comm::DataType::kUint8, 0).wait();
  if (is_root) return;
  std::int64_t begin = 0;
  for (const at::Tensor& one : buffers) {
    const auto length = static_cast<std::int64_t>(one.nbytes());
    // Clones the slice, because a type may need an aligned address.
    one.copy_(packed.slice(0, begin, begin + length).clone().view(one.scalar_type()).view(one.sizes()));
    begin += length;
  }
}

}  // namespace dtrain::train
