// Clipping by the global norm.
#pragma once

#include <cstdint>
#include <span>

#include "flat_parameters.h"

namespace dtrain::train {

// Scales the gradients of the used parameters so that their L2 norm is at most `max_norm`; returns the norm before. The
// sum is in double, in an order that depends on nothing but the layout, so every rank scales by the same bits. A norm
// that is not finite scales nothing: it is left for the caller to see.
double clip_gradient_norm(FlatParameters& parameters, std::span<const std::uint8_t> used, double max_norm);

}  // namespace dtrain::train
