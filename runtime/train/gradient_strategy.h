// How gradients become an update that is the same on every rank. The engine drives one of these; `replicated` is the
// one there is, a sharded one will stand beside it.
//
// A window is the aggregation_frequency batches whose gradients are summed before one exchange. All calls come from the
// training thread (autograd's CPU hooks run there).
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace dtrain::train {

class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  // A batch starts. `exchange`: gradients are exchanged in this batch, bucket by bucket as backward completes them.
  virtual void begin_batch(bool exchange) = 0;
  // Runs autograd from `loss`; its hooks call gradient_ready().
  virtual void backward(const at::Tensor& loss) = 0;
  // Backward has finished the gradient of a parameter (index into FlatParameters::parameters()).
  virtual void gradient_ready(std::size_t parameter) = 0;
  // Hands over what backward did not complete, with zeros for what it did not touch, and waits for every bucket.
  // Returns, for each parameter, whether any rank used it in this window. Gradients are then the mean over ranks
  // (and over the window's batches, if so configured) of a full window.
  virtual std::span<const std::uint8_t> finish_exchange() = 0;
  // The update is done: the next batch starts a new window.
  virtual void end_window() = 0;
};

}  // namespace dtrain::train
