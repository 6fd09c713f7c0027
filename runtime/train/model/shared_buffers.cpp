#include "model/shared_buffers.h"

#include <string>

#include <ATen/ATen.h>

namespace dtrain::train {

namespace {

// libtorch's norms write their statistics without a new version.
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
  std::vector<at::Tensor> written, bytes;
  std::size_t size = 0;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (!written_[i]) continue;
    written.push_back(buffers_[i].detach());
    size += written.back().nbytes();
  }
  if (written.empty()) return;
  const at::NoGradGuard no_grad;
  const bool is_root = communicator_.rank() == 0;
  const bool on_host = written.front().is_cpu();
  at::Tensor packed;
  if (is_root) {
    for (const at::Tensor& one : written) bytes.push_back(one.contiguous().view({-1}).view(at::kByte));
    packed = at::cat(bytes);
  } else {
    packed = at::empty({static_cast<std::int64_t>(size)}, written.front().options().dtype(at::kByte));
  }
  auto& communicator = on_host ? communicator_ : device_communicator_;
  communicator.broadcast(packed.data_ptr(), size, comm::DataType::kUint8, 0).wait();
  std::int64_t begin = 0;
  for (const at::Tensor& one : written) {
    const auto length = static_cast<std::int64_t>(one.nbytes());
    if (!is_root) one.copy_(packed.slice(0, begin, begin + length).clone().view(one.scalar_type()).view(one.sizes()));
    begin += length;
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (versions_[i] >= 0) versions_[i] = version_of(buffers_[i]);
  }
}

}  // namespace dtrain::train
