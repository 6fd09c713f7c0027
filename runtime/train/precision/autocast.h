// libtorch's autocast, spanning a forward pass and the loss: matrix products and convolutions compute in a narrower
// type, what needs float32 stays in it (docs/performance.md). Backward runs without it.
#pragma once

#include <optional>

#include <ATen/core/ATen_fwd.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "dtrain/config/optimizations.h"

namespace dtrain::train {

// What autocast computes in; none: autocast stays off.
std::optional<at::ScalarType> autocast_type(config::Precision precision);

// Of the calling thread, for its life. What the thread had before comes back.
class Autocast {
 public:
  // None: nothing happens.
  Autocast(std::optional<at::ScalarType> type, c10::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // Off while it lives.
  class Pause {
   public:
    explicit Pause(const Autocast& autocast);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const Autocast& autocast_;
    bool was_on_ = false;
  };

 private:
  const std::optional<at::ScalarType> type_;
  const c10::DeviceType device_;
  bool was_on_ = false;
  at::ScalarType type_before_ = at::ScalarType::Undefined;
};

}  // namespace dtrain::train
