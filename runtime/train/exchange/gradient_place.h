// Brings the gradients that backward makes to their places in the flat buffer. On a CPU autograd mostly writes them
// there (GradientMemory); on a device they are copied, those of a bucket together.
//
// Called by the thread that runs backward, and between backwards by the training thread; on a device in the order of
// the current stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include "model/flat_parameters.h"

namespace dtrain::train {

class GradientPlace {
 public:
  virtual ~GradientPlace() = default;

  // Called around the backward of a window's first batch, in which no parameter has a gradient before.
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;

  // To be called when backward has made a gradient. Returns true if it lies in the parameter's place already.
  virtual bool settle(std::size_t parameter, const at::Tensor& gradient) = 0;
  // False while another tensor lives in the parameter's place: then nothing may be written there.
  virtual bool may_write(std::size_t parameter) const = 0;
  // Puts a dense gradient into the parameter's place, at the latest at finish().
  virtual void put(std::size_t parameter, const at::Tensor& gradient) = 0;
  // Completes the puts of these parameters.
  virtual void finish(std::span<const std::size_t> parameters) = 0;
  virtual void finish_all() = 0;
};

// Makes the object for the parameters' device. They outlive it.
std::unique_ptr<GradientPlace> make_gradient_place(FlatParameters& parameters);

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
class GradientMemory {
 public:
  explicit GradientMemory(FlatParameters& parameters);
  GradientMemory& operator=(GradientMemory&&) = delete;

  // Lends during its lifetime, which spans one backward().
  class Lending {
   public:
    explicit Lending(GradientMemory& memory) : memory_(memory) { memory_.begin(); }
    ~Lending() { memory_.end(); }
    Lending& operator=(Lending&&) = delete;

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

// Guards `.grad` between context.backward() and the update, when it may only be read. Its memory is being exchanged,
// and a rank that changed it (clip_grad_norm_, zero_grad, grad.mul_) would change values that others have read already,
// or not yet. libtorch's copy-on-write storages show a write: code that asks for memory to write gets a copy, so the
// tensor lies elsewhere afterwards. Version counters would not do: the C++ clip_grad_norm_ writes through .data().
class GradientGuard {
 public:
  // `gradient`'s memory outlives this object and the view.
  explicit GradientGuard(const at::Tensor& gradient);

  // A tensor that looks like the gradient and reads its memory.
  const at::Tensor& view() const { return view_; }
  // True if code has asked to write the memory of the view.
  bool written() const { return view_.const_data_ptr() != memory_.get(); }

 private:
  at::Tensor view_;
  at::DataPtr memory_;  // a second reference, so that a writer is never the last user, who would need no copy
};

}  // namespace dtrain::train
