#include "device/steps_in_flight.h"

#include <chrono>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "device/training_device.h"

namespace dtrain::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kEager{50};  // polls without a pause for this time
constexpr std::chrono::microseconds kNap{20};    // pause between later polls

}  // namespace

StepsInFlight::StepsInFlight(c10::Device device, comm::Communicator& communicator, profile::Recorder& recorder)
    : device_(device), communicator_(communicator), recorder_(recorder) {}

// Waits, because copies in flight write to memory of this object.
StepsInFlight::~StepsInFlight() {
  try {
    while (!flights_.empty()) {
      wait_for(flights_.front().ended);
      flights_.pop_front();
    }
  } catch (const std::exception&) {  // a failed device or peer, which the owner reports
  }
}

void StepsInFlight::read(const at::Tensor& values, Use use) {
  const at::NoGradGuard no_grad;
  const at::Tensor doubles = values.detach().to(at::kDouble).contiguous();
  if (doubles.is_cpu()) return use({doubles.const_data_ptr<double>(), static_cast<std::size_t>(doubles.numel())});
  at::Tensor copy = at::empty(doubles.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  copy.copy_(doubles, /*non_blocking=*/true);
  readings_.push_back({std::move(copy), std::move(use)});
}

void StepsInFlight::when_ended(std::function<void()> use) {
  if (device_.is_cpu()) return use();
  readings_.push_back({{}, [use = std::move(use)](std::span<const double>) { use(); }});
}

void StepsInFlight::end_batch() {
  if (device_.is_cpu()) return;
  Flight flight{c10::Event(device_.type()), std::exchange(readings_, {})};
  flight.ended.record(current_stream(device_));
  flights_.push_back(std::move(flight));
  while (flights_.size() > kMost) finish_oldest();
}

void StepsInFlight::extend_batch() {
  if (device_.is_cpu()) return;
  if (flights_.empty()) return end_batch();
  Flight& last = flights_.back();
  last.ended.record(current_stream(device_));
  for (Reading& reading : std::exchange(readings_, {})) last.readings.push_back(std::move(reading));
}

void StepsInFlight::finish_oldest() {
  if (flights_.empty()) return;
  wait_for(flights_.front().ended);
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  for (const Reading& reading : flight.readings) {
    if (!reading.copy.defined()) {
      reading.use({});
      continue;
    }
    reading.use({reading.copy.const_data_ptr<double>(), static_cast<std::size_t>(reading.copy.numel())});
  }
}

void StepsInFlight::finish_all() {
  while (!flights_.empty()) finish_oldest();
}

void StepsInFlight::wait_for_all() {
  if (device_.is_cpu()) return;
  c10::Event all(device_.type());
  all.record(current_stream(device_));
  wait_for(all);
}

void StepsInFlight::wait_for(const c10::Event& ended) {
  const profile::PhaseScope phase(recorder_, profile::Phase::kDeviceWait);
  const auto began = SteadyClock::now();
  while (!ended.query()) {
    communicator_.progress();
    if (SteadyClock::now() - began > kEager) std::this_thread::sleep_for(kNap);
  }
  // A communicator that was stopped has ended its kernels, and the event fires over results that are not there.
  communicator_.progress();
}

}  // namespace dtrain::train
