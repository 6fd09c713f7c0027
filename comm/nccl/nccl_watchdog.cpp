#include "nccl/nccl_watchdog.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

// Returns the time between two looks of the watchdog.
std::chrono::milliseconds period_of(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 20, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
}

}  // namespace

NcclWatchdog::NcclWatchdog(SharedNcclApi api, int device, std::chrono::milliseconds timeout, Expired expired)
    : api_(std::move(api)), device_(device), timeout_(timeout), expired_(std::move(expired)), thread_([this] {
        run();
      }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::watch(const NcclEntry& entry, const CudaEvent* began, const CudaEvent& done) {
  const std::scoped_lock lock(mutex_);
  watched_ = {entry, began, &done, std::nullopt};
}

void NcclWatchdog::watch_nothing() {
  const std::scoped_lock lock(mutex_);
  watched_.reset();
}

std::optional<NcclWatchdog::Watched> NcclWatchdog::look() {
  if (!watched_) return std::nullopt;
  if (!watched_->since) {
    if (!watched_->began || watched_->began->query()) watched_->since = clock_.monotonic();
    return std::nullopt;
  }
  if (clock_.monotonic() - *watched_->since < Nanoseconds(timeout_) || watched_->done->query()) return std::nullopt;
  return std::exchange(watched_, std::nullopt);
}

void NcclWatchdog::run() {
  static_cast<void>(api_->cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::optional<Watched> expired;
    try {
      expired = look();
    } catch (const CommError&) {
      watched_.reset();  // the device has failed, which its owner finds out too
    }
    if (expired) {
      lock.unlock();
      expired_(expired->entry, *expired->since);
      lock.lock();
      continue;
    }
    changed_.wait_for(lock, period_of(timeout_), [this] { return ending_; });
  }
}

}  // namespace dtrain::comm
