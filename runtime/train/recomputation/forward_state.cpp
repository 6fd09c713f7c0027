#include "recomputation/forward_state.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/device_graph.h"
#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState RandomState::current() {
  RandomState state;
  state.cpu_ = state_of(at::detail::getDefaultCPUGenerator());
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    if (guard.deviceCount() > 0) {
      state.device_ = guard.getDevice();
      state.of_device_ = state_of(at::globalContext().defaultGenerator(*state.device_));
    }
  }
  return state;
}

void RandomState::restore() const {
  set_state(at::detail::getDefaultCPUGenerator(), cpu_);
  if (device_) set_state(at::globalContext().defaultGenerator(*device_), of_device_);
}

AutocastState AutocastState::current() {
  AutocastState state;
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    state.devices[i] = {at::autocast::is_autocast_enabled(kDevices[i]), at::autocast::get_autocast_dtype(kDevices[i])};
  }
  state.cache = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], devices[i].enabled);
    at::autocast::set_autocast_dtype(kDevices[i], devices[i].type);
  }
  at::autocast::set_autocast_cache_enabled(cache);
}

ForwardState ForwardState::current() {
  if (capturing_graph) {
    throw Error("dtrain::checkpoint() draws the random numbers of forward once more, which a CUDA graph cannot repeat");
  }
  return {RandomState::current(), AutocastState::current()};
}

AsInForward::AsInForward(const ForwardState& forward) : before_(ForwardState::current()) {
  forward.random.restore();
  at::autocast::increment_nesting();
  forward.autocast.set();
}

AsInForward::~AsInForward() {
  // Clears the cached casts of this computation, unless another computation under autocast surrounds it.
  if (at::autocast::decrement_nesting() == 0 || !before_.autocast.enabled()) at::autocast::clear_cache();
  before_.autocast.set();
  before_.random.restore();
}

}  // namespace dtrain::train
