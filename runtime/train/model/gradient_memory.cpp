#include "model/gradient_memory.h"

#include <algorithm>

#include <c10/core/CPUAllocator.h>

namespace dtrain::train {

namespace {
constexpr std::uint8_t kPriority = 1;           // libtorch's own has 0
thread_local GradientMemory* lender = nullptr;  // the object whose backward this thread runs
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

}  // namespace dtrain::train
