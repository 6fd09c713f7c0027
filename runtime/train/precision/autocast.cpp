#include "precision/autocast.h"

#include <ATen/autocast_mode.h>

namespace dtrain::train {

std::optional<at::ScalarType> autocast_type(config::Precision precision) {
  if (precision == config::Precision::kFloat32) return std::nullopt;
  return precision == config::Precision::kFloat16 ? at::kHalf : at::kBFloat16;
}

Autocast::Autocast(std::optional<at::ScalarType> type, c10::Device device) : type_(type), device_(device.type()) {
  if (!type_) return;
  was_on_ = at::autocast::is_autocast_enabled(device_);
  type_before_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *type_);
}

Autocast::~Autocast() {
  if (!type_) return;
  at::autocast::set_autocast_enabled(device_, was_on_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

Autocast::Pause::Pause(const Autocast& autocast) : autocast_(autocast) {
  if (!autocast_.type_) return;
  was_on_ = at::autocast::is_autocast_enabled(autocast_.device_);
  at::autocast::set_autocast_enabled(autocast_.device_, false);
  at::autocast::clear_cache();  // parameters may change from here on
}

Autocast::Pause::~Pause() {
  if (autocast_.type_) at::autocast::set_autocast_enabled(autocast_.device_, was_on_);
}

}  // namespace dtrain::train
