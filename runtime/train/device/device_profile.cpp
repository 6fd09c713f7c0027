#include "device/device_profile.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include <c10/core/CachingDeviceAllocator.h>

#include "device/training_device.h"
#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

class CachingAllocatorMemory final : public profile::DeviceMemory {
 public:
  CachingAllocatorMemory(c10::DeviceAllocator& allocator, c10::DeviceIndex index)
      : allocator_(allocator), index_(index) {}

  Reading take() override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator_.getDeviceStats(index_);
    allocator_.resetPeakStats(index_);  // called once per phase, so that the next peak is of the next phase
    return {stats.allocated_bytes[kAll].current, stats.reserved_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
  }
  int device() const override { return index_; }

 private:
  c10::DeviceAllocator& allocator_;
  c10::DeviceIndex index_;
};

// Returns nullptr if memory is not cached, or was never allocated.
c10::DeviceAllocator* caching_allocator(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

// CUDA returns time differences as float milliseconds, which have a resolution of 0.1 us at two seconds.
constexpr double kMostDistance_ns = 2e9;

using SteadyClock = std::chrono::steady_clock;

// Limits of the polling after the device has finished all work.
constexpr std::chrono::seconds kMostAsking{2};
constexpr std::chrono::microseconds kBetweenQuestions{20};

constexpr const char* kVariable = "DTRAIN_SYNC_DEBUG";
// The static object of c10::cuda::warning_state() in libc10_cuda.so, which is an enum: 0 for nothing, 2 for errors.
constexpr const char* kWarningState = "_ZZN3c104cuda13warning_stateEvE14warning_state_";
constexpr int kNothing = 0;
constexpr int kError = 2;

}  // namespace

std::unique_ptr<profile::DeviceMemory> device_memory(const c10::Device& device) {
  auto* const allocator = caching_allocator(device);
  if (allocator == nullptr) return nullptr;
  return std::make_unique<CachingAllocatorMemory>(*allocator,
                                                  device.has_index() ? device.index() : c10::DeviceIndex{0});
}

void release_unused_memory(const c10::Device& device) {
  if (auto* const allocator = caching_allocator(device)) allocator->emptyCache();
}

c10::Event DeviceTimes::free_event() {
  if (free_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event event = std::move(free_.back());
  free_.pop_back();
  return event;
}

// Does not throw: destructors call it at changes of phase, also while an exception of a failed device is handled.
void DeviceTimes::mark() {
  if (failed_) return;
  marks_.push_back({free_event(), static_cast<double>(clock_.monotonic().count())});
  try {
    marks_.back().event.record(current_stream(device_));
  } catch (const std::exception&) {
    failed_ = true;
  }
}

bool DeviceTimes::has_passed(const c10::Event& event) {
  if (failed_) return false;
  try {
    return event.query();
  } catch (const std::exception&) {
    failed_ = true;
    return false;
  }
}

void DeviceTimes::measure_from(c10::Event event, double since_origin_ns) {
  if (origin_) free_.push_back(std::move(*origin_));
  origin_.emplace(std::move(event));
  if (origin_time_) *origin_time_ += since_origin_ns;
}

bool DeviceTimes::take(std::size_t count, std::vector<std::int64_t>& times) {
  if (count == 0) return true;
  // All events are on one stream: when the device has passed the last event, it has passed all.
  if (count > marks_.size() || !has_passed(marks_[count - 1].event)) return false;
  const auto seen_ns = static_cast<double>(clock_.monotonic().count());
  const c10::Event& origin = origin_ ? *origin_ : marks_.front().event;
  since_origin_.clear();
  double earliest_ns = 0;
  for (std::size_t i = 0; i < count; ++i) {
    // The first origin's time is 0: an event is not measured from itself.
    const bool is_origin = !origin_ && i == 0;
    since_origin_.push_back(is_origin ? 0 : origin.elapsedTime(marks_[i].event) * 1e6);
    const double possible_ns = marks_[i].recorded_ns - since_origin_.back();
    earliest_ns = i == 0 ? possible_ns : std::max(earliest_ns, possible_ns);
  }
  const double latest_ns = seen_ns - since_origin_.back();
  // The same shift for all events keeps their distances.
  origin_time_ = std::min(std::max(origin_time_.value_or(earliest_ns), earliest_ns), latest_ns);
  for (const double since_ns : since_origin_) {
    last_taken_ = std::max<std::int64_t>(last_taken_, std::llround(*origin_time_ + since_ns));
    times.push_back(last_taken_);
  }
  for (std::size_t i = 0; i < count; ++i) {
    c10::Event event = std::move(marks_.front().event);
    marks_.pop_front();
    const bool new_origin = !origin_ || (i + 1 == count && since_origin_.back() > kMostDistance_ns);
    if (!new_origin) {
      free_.push_back(std::move(event));
    } else {
      measure_from(std::move(event), since_origin_[i]);
    }
  }
  return true;
}

DeviceProfile::DeviceProfile(c10::Device device, profile::Recorder& recorder, const Clock& clock, bool device_times)
    : device_(device), recorder_(recorder), memory_(device_memory(device)) {
  if (device.is_cpu() || !recorder.enabled()) return;
  if (device_times) times_.emplace(device, clock);
  recorder_.hold_steps(times_ ? &*times_ : nullptr);
  recorder_.watch(memory_.get());
}

DeviceProfile::~DeviceProfile() {
  recorder_.release_steps();
  recorder_.watch(nullptr);
}

void DeviceProfile::settle(StepsInFlight& in_flight) {
  if (device_.is_cpu()) return;
  in_flight.wait_for_all();
  const auto began = SteadyClock::now();
  while (!recorder_.hand_on_steps() && SteadyClock::now() - began < kMostAsking)
    std::this_thread::sleep_for(kBetweenQuestions);
}

SyncDebug::SyncDebug(c10::Device device) {
  const char* const value = std::getenv(kVariable);
  const std::string wanted = value == nullptr ? "" : value;
  if (wanted.empty() || wanted == "off") return;
  if (wanted != "error") {
    throw ConfigError(std::string("environment: ") + kVariable + " is '" + wanted + "'", "use error or off");
  }
  if (device.is_cpu()) return;
  mode_ = static_cast<int*>(::dlsym(RTLD_DEFAULT, kWarningState));
  if (mode_ == nullptr) {
    throw ConfigError(
        std::string("environment: ") + kVariable + ": this libtorch has no switch for operations that wait for the GPU",
        "use the libtorch that dtrain is built for, or leave the variable out");
  }
}

SyncDebug::Scope::Scope(SyncDebug& debug, std::int64_t batch) {
  if (debug.mode_ == nullptr || batch < kFirstBatch) return;
  mode_ = debug.mode_;
  *mode_ = kError;
}

SyncDebug::Scope::~Scope() {
  if (mode_ != nullptr) *mode_ = kNothing;
}

}  // namespace dtrain::train
