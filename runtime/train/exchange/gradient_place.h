// Brings the gradients that backward makes to their places in the flat buffer. On a CPU autograd mostly writes them
// there (GradientMemory); on a device they are copied, those of a bucket together.
//
// Called by the thread that runs backward, and between backwards by the training thread; on a device in the order of
// the current stream.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <ATen/ATen.h>

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

}  // namespace dtrain::train
