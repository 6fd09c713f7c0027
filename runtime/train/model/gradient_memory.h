// Lets autograd write gradients straight into the flat buffer, so that they are not copied there afterwards.
//
// Autograd offers no way to say where a gradient goes, but it allocates each one through libtorch's CPU allocator, and
// a model's backward allocates in the same order every time. This allocator stands before libtorch's own. During a
// lending backward it follows the sequence of allocations and remembers those that became a parameter's gradient. From
// the next backward on it answers those with the parameter's place in the flat buffer. As soon as the sequence differs
// from the one before, it lends nothing more in that backward; gradients from elsewhere are copied.
//
// Used by the thread that runs backward; lent memory may be released on any thread, also after this object is gone (but
// not after the communicator's memory is). libtorch has one allocator for the process: ours is put there once, stays,
// and passes on all allocations but those of a lending thread.
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

  // Lends during its lifetime, which spans one backward().
  class Lending {
   public:
    explicit Lending(GradientMemory& memory) : memory_(memory) { memory_.begin(); }
    ~Lending() { memory_.end(); }
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

   private:
    GradientMemory& memory_;
  };

  // To be called when backward has finished a parameter's gradient, whose memory begins at `data`. Returns true if that
  // is the parameter's place in the flat buffer; otherwise remembers this allocation for the next backward.
  bool settle(std::size_t parameter, const void* data);
  // False while the parameter's place, which was lent, holds another tensor: then the place must not be written.
  bool may_write(std::size_t parameter) const;

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::size_t bytes = 0;          // bytes of the gradient itself
    bool settled = false;           // in this window the place holds the gradient
    std::atomic<bool> lent{false};  // the place is the storage of a tensor
  };
  using Slots = std::vector<Slot>;
  class Dispatcher;  // the allocator that libtorch calls
  void begin();
  void end();
  c10::DataPtr allocate(std::size_t bytes, c10::Allocator& otherwise);

  const c10::Device device_;
  std::shared_ptr<Slots> slots_;     // shared with the storages that were lent, which may be released later
  bool as_before_ = false;           // the allocations of this backward so far are those of the one before
  std::vector<std::size_t> sizes_;   // bytes of the allocations of this backward, in order
  std::vector<const void*> places_;  // addresses of these allocations
  std::vector<std::size_t> sizes_before_;
  std::vector<std::ptrdiff_t> parameter_at_;  // for each allocation the parameter whose gradient it becomes; -1: none
};

}  // namespace dtrain::train
