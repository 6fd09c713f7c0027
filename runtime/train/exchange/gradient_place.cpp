#include "exchange/gradient_place.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COWDeleter.h>

namespace c10::impl::cow {
C10_API void materialize_cow(StorageImpl* storage);  // as libtorch 2.15 has it; older ones copy what has a cow_deleter
}

namespace dtrain::train {
namespace {

constexpr std::uint8_t kPriority = 1;           // libtorch's own has 0
thread_local GradientMemory* lender = nullptr;  // the object whose backward this thread runs

class HostGradientPlace final : public GradientPlace {
 public:
  explicit HostGradientPlace(FlatParameters& parameters) : parameters_(parameters), memory_(parameters) {}

  void begin_backward() override { lending_.emplace(memory_); }
  void end_backward() override { lending_.reset(); }
  bool settle(std::size_t parameter, const at::Tensor& gradient) override {
    return memory_.settle(parameter, gradient.data_ptr());
  }
  bool may_write(std::size_t parameter) const override { return memory_.may_write(parameter); }
  void put(std::size_t parameter, const at::Tensor& gradient) override {
    parameters_.parameters()[parameter].gradient.copy_(gradient);
  }
  void finish(std::span<const std::size_t> /*parameters*/) override {}
  void finish_all() override {}

 private:
  FlatParameters& parameters_;
  GradientMemory memory_;
  std::optional<GradientMemory::Lending> lending_;
};

// Copies every gradient once, as PyTorch's DDP does, those of a bucket in one call: libtorch's CUDA allocator cannot be
// taught places as the CPU's can.
class DeviceGradientPlace final : public GradientPlace {
 public:
  explicit DeviceGradientPlace(FlatParameters& parameters)
      : parameters_(parameters), waiting_(parameters.parameters().size()) {}

  // Forgets tensors that a backward with an exception has left: they are no gradients.
  void begin_backward() override {
    waiting_.assign(waiting_.size(), at::Tensor());
    waiting_bytes_ = 0;
  }
  void end_backward() override {}
  bool settle(std::size_t parameter, const at::Tensor& gradient) override {
    return gradient.data_ptr() == parameters_.parameters()[parameter].gradient.data_ptr();
  }
  bool may_write(std::size_t /*parameter*/) const override { return true; }
  void put(std::size_t parameter, const at::Tensor& gradient) override {
    waiting_[parameter] = gradient;
    waiting_bytes_ += static_cast<std::int64_t>(gradient.nbytes());
    // If no bucket left in this backward, all gradients would exist twice at its end.
    if (waiting_bytes_ > kMostWaiting) finish_all();
  }
  void finish(std::span<const std::size_t> parameters) override {
    std::vector<at::Tensor> places, gradients;
    for (const std::size_t index : parameters) {
      if (!waiting_[index].defined()) continue;
      places.push_back(parameters_.parameters()[index].gradient);
      gradients.push_back(std::exchange(waiting_[index], at::Tensor()));
      waiting_bytes_ -= static_cast<std::int64_t>(gradients.back().nbytes());
    }
    if (places.empty()) return;
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(places, gradients);
  }
  void finish_all() override {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      if (waiting_[i].defined()) all.push_back(i);
    }
    finish(all);
  }

 private:
  FlatParameters& parameters_;
  static constexpr std::int64_t kMostWaiting = 64 << 20;
  std::vector<at::Tensor> waiting_;  // for each parameter the gradient to be copied
  std::int64_t waiting_bytes_ = 0;
};

// Makes code that asks for memory to write get a copy.
template <class Storage>
void copy_on_write(Storage& storage) {
  if constexpr (requires { storage.set_materializer(&c10::impl::cow::materialize_cow); }) {
    storage.set_materializer(&c10::impl::cow::materialize_cow);
  }
}

}  // namespace

class GradientMemory::Dispatcher final : public c10::Allocator {
 public:
  // Puts the dispatcher before the allocator that was there, for the rest of the process.
  static void install() {
    static Dispatcher* const installed = [] {
      auto* dispatcher = new Dispatcher(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(dispatcher, kPriority);
      return dispatcher;
    }();
    static_cast<void>(installed);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    return lender ? lender->allocate(bytes, otherwise_) : otherwise_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return otherwise_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  explicit Dispatcher(c10::Allocator& otherwise) : otherwise_(otherwise) {}
  c10::Allocator& otherwise_;
};

GradientMemory::GradientMemory(FlatParameters& parameters)
    : device_(parameters.memory().device()), slots_(std::make_shared<Slots>(parameters.parameters().size())) {
  for (std::size_t i = 0; i < slots_->size(); ++i) {
    const auto& parameter = parameters.parameters()[i];
    (*slots_)[i].data = FlatMemory::address(parameter.gradient);
    (*slots_)[i].bytes = parameter.gradient.nbytes();
  }
  Dispatcher::install();
}

void GradientMemory::begin() {
  sizes_.clear();
  places_.clear();
  as_before_ = !sizes_before_.empty();
  for (Slot& slot : *slots_) slot.settled = false;
  lender = this;
}

void GradientMemory::end() {
  lender = nullptr;
  std::swap(sizes_before_, sizes_);
}

c10::DataPtr GradientMemory::allocate(std::size_t bytes, c10::Allocator& otherwise) {
  const std::size_t turn = sizes_.size();
  as_before_ = as_before_ && turn < sizes_before_.size() && sizes_before_[turn] == bytes;
  sizes_.push_back(bytes);
  if (as_before_ && turn < parameter_at_.size() && parameter_at_[turn] >= 0) {
    const auto index = static_cast<std::size_t>(parameter_at_[turn]);
    Slot& slot = (*slots_)[index];
    if (slot.bytes == bytes && !slot.lent.load(std::memory_order_acquire)) {
      struct Loan {
        std::shared_ptr<Slots> slots;
        std::size_t index;
      };
      auto loan = std::make_unique<Loan>(Loan{slots_, index});
      slot.lent.store(true, std::memory_order_relaxed);
      places_.push_back(slot.data);
      const auto give_back = [](void* context) {
        const std::unique_ptr<Loan> ended(static_cast<Loan*>(context));
        (*ended->slots)[ended->index].lent.store(false, std::memory_order_release);
      };
      return {slot.data, loan.release(), give_back, device_};
    }
  }
  c10::DataPtr result = otherwise.allocate(bytes);
  places_.push_back(result.get());
  return result;
}

bool GradientMemory::settle(std::size_t parameter, const void* data) {
  Slot& slot = (*slots_)[parameter];
  if (data == slot.data) {
    slot.settled = true;
    return true;
  }
  if (lender != this) return false;
  std::replace(parameter_at_.begin(), parameter_at_.end(), static_cast<std::ptrdiff_t>(parameter), std::ptrdiff_t{-1});
  // The latest allocation at this place is the gradient: earlier ones there have been freed.
  const auto found = std::find(places_.rbegin(), places_.rend(), data);
  if (found == places_.rend()) return false;
  const auto turn = static_cast<std::size_t>(places_.rend() - found) - 1;
  if (turn >= parameter_at_.size()) parameter_at_.resize(turn + 1, -1);
  parameter_at_[turn] = static_cast<std::ptrdiff_t>(parameter);
  return false;
}

bool GradientMemory::may_write(std::size_t parameter) const {
  const Slot& slot = (*slots_)[parameter];
  return slot.settled || !slot.lent.load(std::memory_order_acquire);
}

std::unique_ptr<GradientPlace> make_gradient_place(FlatParameters& parameters) {
  if (parameters.memory().on_host()) return std::make_unique<HostGradientPlace>(parameters);
  return std::make_unique<DeviceGradientPlace>(parameters);
}

GradientGuard::GradientGuard(const at::Tensor& gradient) {
  namespace cow = c10::impl::cow;
  void* const memory = gradient.data_ptr();
  auto* const context = new cow::COWDeleterContext({memory, [](void*) {}});  // the storage must not free this memory
  at::DataPtr first(memory, context, cow::cow_deleter, gradient.device());
  context->increment_refcount();
  memory_ = at::DataPtr(memory, context, cow::cow_deleter, gradient.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(gradient.nbytes()), std::move(first),
      c10::GetAllocator(gradient.device().type()), /*resizable=*/false);
  copy_on_write(*storage);
  view_ = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(gradient.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA), gradient.dtype());
  view_.unsafeGetTensorImpl()->set_sizes_and_strides(gradient.sizes(), gradient.strides());
}

}  // namespace dtrain::train
