// The exchange of a script's process groups, in the records of its rank: as collectives of the step in which each has
// ended, and as the phase in which the training thread waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "dtrain/profile/recorder.h"
#include "dtrain/torch_distributed/observer.h"

namespace dtrain::python {

// Made by the training thread, which alone calls what is no part of the observer.
class ExchangeRecords final : public torch_distributed::Observer {
 public:
  explicit ExchangeRecords(profile::Recorder& recorder)
      : recorder_(&recorder), training_thread_(std::this_thread::get_id()) {}

  // Collectives that have ended since the last step belong to none.
  void begin_step() {
    const std::scoped_lock lock(mutex_);
    ended_.clear();
    buckets_ = 0;
  }
  void begin_phase(profile::Phase phase) { phase_ = phase; }
  void end_step();
  // The recorder is not used any more.
  void close() { recorder_ = nullptr; }
  bool is_open() const { return recorder_.load() != nullptr; }

  bool is_training_thread() const { return std::this_thread::get_id() == training_thread_; }

  bool begin_wait() override;
  void end_wait() override;
  int bucket() override { return is_training_thread() && phase_ == profile::Phase::kBackward ? buckets_++ : -1; }
  void ended(const torch_distributed::EndedOperation& operation) override;

 private:
  std::atomic<profile::Recorder*> recorder_;
  const std::thread::id training_thread_;
  bool waits_ = false;
  int buckets_ = 0;
  profile::Phase phase_ = profile::Phase::kOther;  // of the step, not of waiting
  std::mutex mutex_;                               // guards what follows
  std::vector<profile::CollectiveRecord> ended_;
};

}  // namespace dtrain::python
