#include "checkpoint/state_image.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "device/training_device.h"
#include "model/update_copy.h"
#include "model/weights.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kAlignment = 64;        // bytes; of the first tensor's begin in its file
constexpr std::size_t kLockedAlignment = 64;  // bytes; of a value in page-locked memory

}  // namespace

void FileImage::add(std::string name, at::Tensor value, Writers writers) {
  const std::size_t bytes = value.nbytes();
  entries_.push_back({std::move(name), std::move(value), data_bytes_, writers});
  data_bytes_ += bytes;
}

void FileImage::lay_out() {
  std::vector<data::SafetensorsEntry> tensors;
  for (const Entry& entry : entries_) tensors.push_back(safetensors_entry(entry.name, entry.value));
  header_ = data::safetensors_header(tensors, metadata_, kAlignment);
}

void FileImage::for_each(const std::function<void(const std::string& name, const at::Tensor& value)>& call) const {
  for (const Entry& entry : entries_) call(entry.name, entry.value);
}

std::map<std::string, std::size_t> FileImage::offsets() const {
  std::map<std::string, std::size_t> offsets;
  for (const Entry& entry : entries_) offsets[entry.name] = header_.size() + entry.offset;
  return offsets;
}

void FileImage::write_header(std::byte* to) const {
  std::memcpy(to, header_.data(), header_.size());
}

std::vector<std::byte> FileImage::file() const {
  std::vector<std::byte> bytes(this->bytes());
  DeviceCopies from_device;
  write_header(bytes.data());
  write_data(bytes.data(), 0, data_bytes_, /*is_first=*/false, from_device);
  from_device.hand_over();
  from_device.complete_now();
  return bytes;
}

void FileImage::write_data(std::byte* to, std::size_t first, std::size_t last, bool is_first,
                           DeviceCopies& from_device) const {
  const at::NoGradGuard no_grad;
  std::byte* const data = to + header_.size();
  for (const Entry& entry : entries_) {
    const std::size_t begin = entry.offset, end = begin + entry.value.nbytes();
    std::size_t from = std::max(first, begin), until = std::min(last, end);
    if (entry.writers == Writers::kFirst && is_first) from = begin, until = end;
    if (entry.writers == Writers::kNone || (entry.writers == Writers::kFirst && !is_first) || from >= until) continue;
    if (entry.value.is_cpu() && entry.value.is_contiguous()) {
      stream_copy(data + from, static_cast<const std::byte*>(entry.value.const_data_ptr()) + (from - begin),
                  until - from);
    } else if (from == begin) {
      if (entry.value.is_cpu()) {
        const at::Tensor dense = entry.value.contiguous();
        std::memcpy(data + begin, dense.const_data_ptr(), end - begin);
      } else {
        from_device.add(entry.value, data + begin);
      }
    }
  }
}

class StateImage::Collector final : public StateVisitor {
 public:
  Collector(StateImage& image, const Options& options) : image_(image), options_(options) {}
  bool replaces() const override { return false; }
  bool needs_whole() const override { return !options_.later && !options_.divided; }

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override {
    const auto name_behind = [&](std::string_view part) { return path.substr(part.size()); };
    using Writers = FileImage::Writers;
    const Writers writers = options_.later ? Writers::kNone : options_.shared ? Writers::kAll : Writers::kFirst;
    if (options_.own_alone) return image_.own_.add(path, std::move(value));
    // All ranks lay out the shared files alike.
    bool own = !options_.shared && options_.rank != 0;
    const auto left_out = [&](const std::string& name) { return options_.names.left_out.contains(name); };
    if (path.starts_with(state_path::kParameters)) {
      const std::string name = name_behind(state_path::kParameters);
      if (left_out(name)) {
        image_.optimizer_.add(std::string(kLeftOutParameter) + name, value, writers);
      } else {
        image_.model_.add(name, value, writers);
      }
    } else if (path.starts_with(state_path::kFrozen)) {
      image_.model_.add(name_behind(state_path::kFrozen), value);
      image_.fixed_.push_back(name_behind(state_path::kFrozen));
      own = false;
    } else if (path.starts_with(state_path::kOptimizer)) {
      image_.optimizer_.add(name_behind(state_path::kOptimizer), value, options_.divided ? Writers::kNone : writers);
    } else {
      if (path.starts_with(state_path::kBuffers) && !left_out(name_behind(state_path::kBuffers))) {
        image_.model_.add(name_behind(state_path::kBuffers), value, Writers::kFirst);
        image_.fixed_.push_back(name_behind(state_path::kBuffers));
      }
      own = true;
    }
    if (own) image_.own_.add(path, std::move(value));
  }
  void on_number(const std::string& path, std::int64_t& value) override { image_.values_[path] = value; }
  void on_real(const std::string& path, double& value) override { image_.values_[path] = number_or_text(value); }
  void on_reals(const std::string& path, std::vector<float>& values) override {
    // The vector may be gone before the image is written.
    image_.own_.add(path, at::tensor(values, at::kFloat));
  }
  void on_text(const std::string& path, std::string& value) override { image_.values_[path] = value; }

 private:
  StateImage& image_;
  const Options& options_;
};

StateImage::StateImage(const Options& options, const std::function<void(StateVisitor&)>& visit) {
  Collector collector(*this, options);
  visit(collector);
  model_.add_metadata("format", "pt");
  for (const auto& [alias, name] : options.names.tied) model_.add_metadata("tied." + alias, name);
  const std::string text = values_.dump();
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  own_.add(std::string(checkpoints::kValuesName), bytes);
  own_.lay_out();
  if (options.own_alone) return;
  model_.lay_out();
  optimizer_.lay_out();
}

void DeviceCopies::add(const at::Tensor& value, std::byte* to) {
  const std::size_t end = copies_.empty() ? 0 : copies_.back().place + copies_.back().value.nbytes();
  copies_.push_back({value, to, (end + kLockedAlignment - 1) / kLockedAlignment * kLockedAlignment});
}

void DeviceCopies::hand_over() {
  seconds_ = 0;
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::size_t bytes = copies_.back().place + copies_.back().value.nbytes();
  if (!locked_.defined() || locked_.nbytes() < bytes) {
    locked_ = at::Tensor();  // is freed before the larger one is allocated
    locked_ = at::empty({static_cast<std::int64_t>(bytes)},
                        at::TensorOptions().dtype(at::kByte).device(at::kCPU).pinned_memory(true));
  }
  for (const Copy& copy : copies_) {
    at::Tensor arrived =
        locked_.narrow(0, static_cast<std::int64_t>(copy.place), static_cast<std::int64_t>(copy.value.nbytes()))
            .view(copy.value.scalar_type())
            .view(copy.value.sizes());
    arrived.copy_(copy.value, /*non_blocking=*/true);
  }
  const c10::Device device = copies_.back().value.device();
  all_arrived_.emplace(device.type());
  all_arrived_->record(current_stream(device));
}

bool DeviceCopies::complete() {
  if (!all_arrived_) return true;
  if (!all_arrived_->query()) return false;
  put_in_place();
  return true;
}

void DeviceCopies::complete_now() {
  if (!all_arrived_) return;
  all_arrived_->synchronize();
  put_in_place();
}

void DeviceCopies::put_in_place() {
  const auto began = std::chrono::steady_clock::now();
  const auto* const arrived = static_cast<const std::byte*>(locked_.const_data_ptr());
  for (const Copy& copy : copies_) stream_copy(copy.to, arrived + copy.place, copy.value.nbytes());
  copies_.clear();
  all_arrived_.reset();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void TrialStateEntries::visit(StateVisitor& visitor) {
  TrialState state;
  if (!visitor.replaces()) state = save_();
  // The names, types and shapes of the tensors, so that load_state() has tensors into which values are read.
  Json kinds = Json::object();
  for (const auto& [name, tensor] : state.tensors) {
    kinds[name] = {{"dtype", safetensors_name(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}};
    // Kernels may round differently if the layout in memory differs, as in an optimizer's state in channels_last.
    if (!tensor.is_contiguous() && tensor.is_non_overlapping_and_dense())
      kinds[name]["strides"] = tensor.strides().vec();
  }
  std::string text;
  if (!visitor.replaces()) {  // after each batch: the values are not copied
    Json told = Json::object();
    told["values"] = std::move(state.values);
    told["tensors"] = std::move(kinds);
    text = told.dump();
  }
  visitor.text("state", text);
  if (visitor.replaces() && text.empty()) return;  // the checkpoint has no such entry
  if (visitor.replaces()) {
    const Json told = Json::parse(text);
    state.values = told["values"];
    for (const auto& [name, kind] : told["tensors"].items()) {
      const auto numbers = [&kind = kind](const char* key) { return kind[key].get<std::vector<std::int64_t>>(); };
      const auto options = at::TensorOptions().dtype(scalar_type_of(kind["dtype"].get<std::string>()));
      state.tensors[name] = kind.contains("strides") ? at::empty_strided(numbers("shape"), numbers("strides"), options)
                                                     : at::empty(numbers("shape"), options);
    }
  }
  for (auto& [name, tensor] : state.tensors) visitor.tensor(name, tensor);
  if (visitor.replaces()) load_(state);
}

}  // namespace dtrain::train
