// Turns collectives into profile records: at once if they have ended, else (on a device) once they have. Training
// thread.
#pragma once

#include <optional>
#include <string_view>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

class CollectiveLog {
 public:
  CollectiveLog(const comm::Communicator& communicator, profile::Recorder& recorder)
      : communicator_(communicator), recorder_(recorder) {}

  // Called when the Work has been joined. On a device the operation may not have ended: then its record follows.
  void record(std::string_view operation, int bucket, comm::Work& work) {
    if (!recorder_.enabled() || recorder_.holds_phase()) return;
    profile::CollectiveRecord record;
    record.sequence = work.sequence();
    record.bucket = bucket;
    operation.copy(record.operation, sizeof record.operation - 1);
    record.bytes = work.bytes();
    record.world_size = communicator_.world_size();
    if (work.test()) return recorder_.collective(with_times(record, work));
    recorder_.collective_later([record, work]() mutable -> std::optional<profile::CollectiveRecord> {
      if (!work.test()) return std::nullopt;
      return with_times(record, work);
    });
  }

 private:
  static profile::CollectiveRecord with_times(profile::CollectiveRecord record, const comm::Work& work) {
    const comm::WorkTiming timing = work.timing();
    record.enqueued_ns = timing.enqueued.count();
    record.started_ns = timing.started.count();
    record.ended_ns = timing.ended.count();
    record.exposed_ns = timing.exposed.count();
    return record;
  }

  const comm::Communicator& communicator_;
  profile::Recorder& recorder_;
};

}  // namespace dtrain::train
