#include "exchange_records.h"

#include <algorithm>

namespace dtrain::python {

void ExchangeRecords::end_step() {
  const std::scoped_lock lock(mutex_);
  for (const profile::CollectiveRecord& record : ended_) recorder_->collective(record);
  ended_.clear();
}

bool ExchangeRecords::begin_wait() {
  if (!is_training_thread() || waits_ || recorder_ == nullptr) return false;
  waits_ = true;
  recorder_->switch_to(profile::Phase::kAllreduceWait);
  return true;
}

void ExchangeRecords::end_wait() {
  waits_ = false;
  if (recorder_ != nullptr) recorder_->switch_to(phase_);
}

void ExchangeRecords::ended(const torch_distributed::EndedOperation& operation) {
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
  ended_.push_back(record);
}

}  // namespace dtrain::python
