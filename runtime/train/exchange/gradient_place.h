// Brings the gradients that backward makes to their places in the flat buffer: on a CPU autograd writes them there, as
// a rule (GradientMemory); on a device they are copied, those of a bucket together.
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

  // Around the backward of a window's first batch, in which no parameter has a gradient before.
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;

  // Backward has made a gradient. True when it lies in the parameter's place already.
  virtual bool settle(std::size_t parameter, const at::Tensor& gradient) = 0;
  // False while another tensor lives in the parameter's place: then nothing may be written there.
  virtual bool may_write(std::size_t parameter) const = 0;
  // Puts a dense gradient into the parameter's place, at the latest with finish().
  virtual void put(std::size_t parameter, const at::Tensor& gradient) = 0;
  // What was put is in the places of these parameters.
  virtual void finish(std::span<const std::size_t> parameters) = 0;
  virtual void finish_all() = 0;
};

// For the device that the parameters are on. They outlive it.
std::unique_ptr<GradientPlace> make_gradient_place(FlatParameters& parameters);

}  // namespace dtrain::train
