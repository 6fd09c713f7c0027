#include "exchange_records.h"

#include <cstddef>

namespace dtrain::python {
namespace {

constexpr std::size_t kMostOfStep = 10'000;  // a program may exchange without ever ending a step

}  // namespace

void ExchangeRecords::end_step() {
  const std::scoped_lock lock(mutex_);
  for (const profile::CollectiveRecord& record : ended_) recorder_.load()->collective(record);
  ended_.clear();
}

bool ExchangeRecords::begin_wait() {
  if (!is_training_thread() || waits_ || !is_open()) return false;
  waits_ = true;
  recorder_.load()->switch_to(profile::Phase::kAllreduceWait);
  return true;
}

void ExchangeRecords::end_wait() {
  waits_ = false;
  if (profile::Recorder* const recorder = recorder_) recorder->switch_to(phase_);
}

void ExchangeRecords::ended(const torch_distributed::EndedOperation& operation) {
  if (!is_open()) return;
  profile::CollectiveRecord record{.sequence = operation.sequence,
                                   .bucket = operation.bucket,
                                   .bytes = static_cast<std::uint64_t>(operation.bytes),
                                   .world_size = operation.group_size,
                                   .enqueued_ns = operation.enqueued_ns,
                                   .started_ns = operation.started_ns,
                                   .ended_ns = operation.ended_ns,
                                   .exposed_ns = operation.exposed_ns};
  operation.name.copy(record.operation, sizeof record.operation - 1);
  const std::scoped_lock lock(mutex_);
  if (ended_.size() < kMostOfStep) ended_.push_back(record);
}

}  // namespace dtrain::python
