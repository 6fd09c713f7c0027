// libtorch's autocast, spanning a forward pass and the loss: matrix products and convolutions compute in a narrower
// type, and operators that need float32 keep it (docs/performance.md). Backward runs without autocast.
#pragma once

#include <optional>

#include <ATen/core/ATen_fwd.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "dtrain/config/optimizations.h"

namespace dtrain::train {

// Returns the narrower type; empty: autocast stays off.
std::optional<at::ScalarType> autocast_type(config::Precision precision);

// Switches autocast on for the calling thread while this object lives; then restores the earlier state.
class Autocast {
 public:
  // Without a type nothing happens.
  Autocast(std::optional<at::ScalarType> type, c10::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // Switches autocast off while this object lives.
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
