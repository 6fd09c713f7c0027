// The factor of gradients before an update: the scale of their sum, and the factor that brings their norm below the
// limit. On a CPU they are multiplied in place, and the norm is the same to the last bit however updates are divided
// over ranks (model/gradient_norm.h). On a device the host knows neither norm nor factor: both stay there, and the
// optimizer divides by the factor as it reads the gradients. Those of a scaled loss are unscaled in place, in the pass
// that looks for Inf and NaN.
//
// Training thread; prepare() is collective if gradients are clipped and other ranks have a part.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"
#include "model/gradient_norm.h"
#include "model/optimizer_update.h"
#include "model/tensor_memory.h"

namespace dtrain::train {

class GradientScaling {
 public:
  virtual ~GradientScaling() = default;

  // Sets the ranges that each rank updates from now on, those of this rank (`own`) among them.
  virtual void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) = 0;
  // From now on the norm covers this rank's ranges alone.
  virtual void set_local_norm() = 0;

  struct Scaled {
    DeviceInputs device;
    // The norm before clipping, if gradients are clipped by norm: one float64, over all parameters whose norm is
    // limited; 0 for an update that found_inf stops.
    std::optional<at::Tensor> norm;
  };
  virtual Scaled prepare(const Update& update) = 0;
};

// Makes the object for the parameters' device; `communicator` is that device's. All references outlive it. `limits`:
// those of parameter groups, besides those of each update.
std::unique_ptr<GradientScaling> make_gradient_scaling(FlatParameters& parameters, comm::Communicator& communicator,
                                                       profile::Recorder& recorder, GradientLimits limits = {});

}  // namespace dtrain::train
