// Lets autograd write gradients straight into the flat buffer, so that they are not copied there afterwards.
//
// Autograd offers no way to say where a gradient goes, but it allocates each one through libtorch's CPU allocator, and
// a model's backward allocates in the same order every time. This allocator stands before libtorch's own: during a
// lending backward it follows the sequence of allocations, remembers which of them became a parameter's gradient, and
// from the next backward on answers those with the parameter's place in the flat buffer. As soon as the sequence
// differs from the one before, it lends nothing more in that backward; gradients that came from elsewhere are copied,
// as without it.
//
// Used by the thread that runs backward; what was lent may be released on any thread, also after this object is gone
// (but not after the communicator's memory is). libtorch has one allocator for the process: ours is put there once,
// stays, and passes on everything but what a lending thread allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>

#include "model/flat_parameters.h"

namespace dtrain::train {

class GradientMemory {
 public:
  explicit GradientMemory(FlatParameters& parameters);
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // Lends during its life: spans one backward().
  class Lending {
   public:
    explicit Lending(GradientMemory& memory) : memory_(memory) { memory_.begin(); }
    ~Lending() { memory_.end(); }
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

   private:
    GradientMemory& memory_;
  };

  // Backward has finished a parameter's gradient, whose memory begins at `data`. True when that is the
  // parameter's place in the flat buffer; otherwise this allocation is remembered for the next time.
  bool settle(std::size_t parameter, const void* data);
  // False while another tensor lives in the parameter's place (it was lent, and became something else): then nothing
  // may be written there.
  bool may_write(std::size_t parameter) const;

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::size_t bytes = 0;          // of the gradient itself
    bool settled = false;           // in this window: what lives there is the gradient
    std::atomic<bool> lent{false};  // a tensor's storage lies there
  };
  using Slots = std::vector<Slot>;
  class Dispatcher;  // what libtorch asks
  void begin();
  void end();
  c10::DataPtr allocate(std::size_t bytes, c10::Allocator& otherwise);

  const c10::Device device_;
  std::shared_ptr<Slots> slots_;     // shared with the storages that were lent, which may be released later
  bool as_before_ = false;           // the allocations of this backward are those of the one before, so far
  std::vector<std::size_t> sizes_;   // of the allocations of this backward, in order, in bytes
  std::vector<const void*> places_;  // where they were
  std::vector<std::size_t> sizes_before_;
  std::vector<std::ptrdiff_t> parameter_at_;  // which gradient the n-th allocation becomes; -1: none
};

}  // namespace dtrain::train
