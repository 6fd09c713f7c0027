#include "exchange/exchange_events.h"

#include <exception>
#include <utility>

#include "device/training_device.h"

namespace dtrain::train {

c10::Event ExchangeEvents::event_now() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(current_stream(device_));
  return event;
}

void ExchangeEvents::begin_backward() {
  gradients_.clear();
  backward_began_.emplace(event_now());
}

void ExchangeEvents::gradient_ready(std::size_t parameter) {
  if (of_gradients_) gradients_.push_back({parameter, ends_.size(), event_now()});
}

ExchangeEvents::Stretch::Stretch(ExchangeEvents* events) : events_(events) {
  if (events_ && events_->depth_++ == 0) events_->begins_.push_back(events_->event_now());
}

void ExchangeEvents::Stretch::end() {
  if (!events_) return;
  ExchangeEvents& events = *std::exchange(events_, nullptr);
  if (--events.depth_ > 0) return;
  try {
    events.ends_.push_back(events.event_now());
  } catch (const std::exception&) {  // a device that has failed: waits for it report the error
  }
}

ExchangeEvents::Times ExchangeEvents::read(std::size_t parameters) const {
  const auto between_us = [](const c10::Event& from, const c10::Event& to) { return from.elapsedTime(to) * 1e3; };
  const c10::Event& begin = *backward_began_;
  std::vector<double> exposed_us{0};  // of the first n stretches
  for (std::size_t s = 0; s < ends_.size(); ++s) {
    exposed_us.push_back(exposed_us.back() + between_us(begins_[s], ends_[s]));
  }
  Times times;
  times.ready_us.assign(parameters, -1);
  for (const Mark& mark : gradients_) {
    times.ready_us[mark.parameter] = between_us(begin, mark.event) - exposed_us[mark.stretches];
  }
  times.exchange.exposed_us = exposed_us.back();
  if (!ends_.empty()) times.exchange.exchanged_us = between_us(begin, ends_.back());
  return times;
}

}  // namespace dtrain::train
