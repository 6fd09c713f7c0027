#include "model/model_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/MemoryOverlap.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/communicator.h"
#include "model/weights.h"

namespace dtrain::train {
namespace {

struct MemoryExtent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::string name;
  bool trainable = false;
};

MemoryExtent extent_of(const std::string& name, const at::Tensor& tensor) {
  std::int64_t last = 0;  // index of the highest element
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * tensor.itemsize(), name, tensor.requires_grad()};
}

// Throws ConfigError for tensors that share a part of their memory: laid out flat, they would no longer share it.
void refuse_partial_overlap(std::vector<MemoryExtent> extents) {
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const MemoryExtent* longest = nullptr;            // the extent before this one that ends last
  const MemoryExtent* longest_trainable = nullptr;  // the same among those that training moves
  for (const MemoryExtent& extent : extents) {
    const MemoryExtent* other = extent.trainable ? longest : longest_trainable;
    if (other && extent.begin < other->end) {
      throw ConfigError("'" + other->name + "' and '" + extent.name + "' of the model share a part of their memory",
                        "give each its own (clone()), or make one a whole view of the other in the same shape");
    }
    if (!longest || longest->end < extent.end) longest = &extent;
    if (extent.trainable && (!longest_trainable || longest_trainable->end < extent.end)) longest_trainable = &extent;
  }
}

bool is_dense_memory(const at::Tensor& buffer) {
  return buffer.defined() && buffer.layout() == at::kStrided && buffer.numel() > 0;
}

// Finds the parameter that is the same memory as a buffer.
std::vector<NamedParameter>::iterator owner_of(const at::Tensor& buffer, std::vector<NamedParameter>& parameters) {
  if (!is_dense_memory(buffer)) return parameters.end();
  return std::find_if(parameters.begin(), parameters.end(),
                      [&](const auto& p) { return same_memory(p.tensor, buffer); });
}

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

// True for the statistics of libtorch's norms, which are written without a new version.
bool is_written_unseen(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

std::int64_t version_of(const at::Tensor& buffer) {
  return static_cast<std::int64_t>(buffer._version());
}

}  // namespace

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.const_data_ptr() != nullptr && a.const_data_ptr() == b.const_data_ptr() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model) {
  std::vector<NamedParameter> result;
  std::map<const at::TensorImpl*, std::size_t> seen;
  std::multimap<const void*, std::size_t> places;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const auto [known, is_new] = seen.try_emplace(tensor.unsafeGetTensorImpl(), result.size());
    if (!is_new) {
      result[known->second].names.push_back(item.key());
      continue;
    }
    const auto [first, last] = places.equal_range(tensor.const_data_ptr());
    const auto same =
        std::find_if(first, last, [&](const auto& p) { return same_memory(result[p.second].tensor, tensor); });
    if (same == last) {
      places.emplace(tensor.const_data_ptr(), result.size());
      result.push_back({{item.key()}, tensor, {}});
      continue;
    }
    NamedParameter& owner = result[same->second];
    known->second = same->second;
    owner.names.push_back(item.key());
    owner.aliases.push_back(tensor);
    if (tensor.requires_grad() && !owner.tensor.requires_grad()) std::swap(owner.tensor, owner.aliases.back());
  }
  return result;
}

void refuse_partial_overlap(const torch::nn::Module& model) {
  auto named = distinct_parameters(model);
  std::vector<MemoryExtent> extents;
  for (const auto& [names, tensor, aliases] : named) {
    if (tensor.numel() > 0) extents.push_back(extent_of(names.front(), tensor));
  }
  for (const auto& item : model.named_buffers()) {
    if (is_dense_memory(item.value()) && owner_of(item.value(), named) == named.end())
      extents.push_back(extent_of(item.key(), item.value()));
  }
  refuse_partial_overlap(std::move(extents));
}

std::set<std::string> left_out_of_weights(const torch::nn::Module& model) {
  std::set<std::string> names;
  const auto walk = [&](const auto& self, const std::string& prefix, const torch::nn::Module& module) -> void {
    if (const auto* const own = dynamic_cast<const LeavesTensorsOut*>(&module)) {
      for (const std::string& name : own->left_out()) names.insert(prefix + name);
    }
    for (const auto& child : module.named_children()) self(self, prefix + child.key() + ".", *child.value());
  };
  walk(walk, "", model);
  return names;
}

void check_tensors(const torch::nn::Module& model) {
  const std::set<std::string> left_out = left_out_of_weights(model);
  const auto check = [&](const std::string& kind, const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return;
    const std::string what = "the " + kind + " '" + name + "' of the model";
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      throw ConfigError(what + " is an expanded tensor: several of its elements are one place in memory",
                        "give it memory of its own: clone() it after expand()");
    }
    const bool is_saved = kind == "buffer" || !tensor.requires_grad();
    if (!is_saved || can_be_saved(tensor.scalar_type())) return;
    const std::string type = c10::toString(tensor.scalar_type());
    if (!tensor.is_complex()) {
      throw ConfigError(what + " is of type " + type + ", which no file of weights can hold",
                        "convert it to another type");
    }
    if (tensor.is_conj() || tensor.is_neg()) {
      throw ConfigError(what + " is a conjugate view", "give it values of its own: resolve_conj().resolve_neg()");
    }
    if (left_out.contains(name)) return;
    throw ConfigError(what + " is of type " + type + ", which no file of weights can hold",
                      kind == "buffer" ? "register it with persistent=False if it is computed anew in each run, or as "
                                         "torch.view_as_real() of it"
                                       : "register torch.view_as_real() of it");
  };
  for (const auto& item : model.named_parameters()) check("parameter", item.key(), item.value());
  for (const auto& item : model.named_buffers()) check("buffer", item.key(), item.value());
}

void add_buffers(std::vector<NamedParameter>& parameters, const torch::nn::Module& model) {
  for (const auto& item : model.named_buffers()) {
    const auto owner = owner_of(item.value(), parameters);
    if (owner != parameters.end() && !item.value().is_same(owner->tensor)) owner->aliases.push_back(item.value());
  }
}

void move_model(torch::nn::Module& model, c10::Device device) {
  if (device.is_cpu()) return;
  refuse_partial_overlap(model);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) all.push_back(buffer);
  std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // each tensor before and after its move
  for (at::Tensor& tensor : all) {
    if (!tensor.defined() || tensor.device() == device) continue;
    at::Tensor there;
    for (const auto& [before, now] : moved) {
      if (is_same_view(before, tensor)) there = now;
    }
    if (!there.defined()) {
      there = tensor.to(device);
      moved.emplace_back(tensor.detach(), there);
    }
    tensor.set_data(there);
  }
}

void ModelState::visit(StateVisitor& visitor) {
  if (visitor.needs_shared()) {
    for (const auto& parameter : distinct_parameters(model_)) {
      if (!parameter.tensor.requires_grad())
        visitor.tensor("frozen/" + parameter.names.front(), parameter.tensor.detach());
    }
  }
  for (const auto& buffer : model_.named_buffers()) {
    const at::Tensor& values = buffer.value();
    if (!values.defined()) continue;
    visitor.tensor("buffers/" + buffer.key(), values.is_complex() ? at::view_as_real(values) : values);
  }
}

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
  for (const at::Tensor& buffer : buffers) {
    if (is_root) std::memcpy(place, buffer.contiguous().const_data_ptr(), buffer.nbytes());
    place += buffer.nbytes();
  }
  communicator_.broadcast(packed_.data(), bytes, comm::DataType::kUint8, 0).wait();
  if (is_root) return;
  place = packed_.data();
  for (at::Tensor buffer : buffers) {
    if (buffer.is_contiguous()) {
      std::memcpy(buffer.data_ptr(), place, buffer.nbytes());
    } else {
      buffer.copy_(at::from_blob(place, buffer.sizes(), buffer.options()));
    }
    place += buffer.nbytes();
  }
}

void SharedBuffers::broadcast_on_device(const std::vector<at::Tensor>& buffers, std::size_t bytes) {
  const at::NoGradGuard no_grad;
  const bool is_root = communicator_.rank() == 0;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& buffer : buffers) {
    if (is_root) parts.push_back(buffer.contiguous().view({-1}).view(at::kByte));
  }
  const at::Tensor packed =
      is_root ? at::cat(parts)
              : at::empty({static_cast<std::int64_t>(bytes)}, buffers.front().options().dtype(at::kByte));
  device_communicator_.broadcast(packed.data_ptr(), bytes, comm::DataType::kUint8, 0).wait();
  if (is_root) return;
  std::int64_t begin = 0;
  for (const at::Tensor& buffer : buffers) {
    const auto length = static_cast<std::int64_t>(buffer.nbytes());
    // Clones the slice, because a type may need an aligned address.
    buffer.copy_(packed.slice(0, begin, begin + length).clone().view(buffer.scalar_type()).view(buffer.sizes()));
    begin += length;
  }
}

}  // namespace dtrain::train
