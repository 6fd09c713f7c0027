// Turns finished collectives into profile records.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

class CollectiveLog {
 public:
  CollectiveLog(const comm::Communicator& communicator, profile::Recorder& recorder)
      : communicator_(communicator), recorder_(recorder) {}

  void record(std::string_view operation, int bucket, const comm::Work& work) {
    if (!recorder_.enabled()) return;
    const comm::WorkTiming timing = work.timing();
    profile::CollectiveRecord record;
    record.sequence = work.sequence();
    record.bucket = bucket;
    operation.copy(record.operation, sizeof record.operation - 1);
    record.bytes = work.bytes();
    record.world_size = communicator_.world_size();
    record.enqueued_ns = timing.enqueued.count();
    record.started_ns = timing.started.count();
    record.ended_ns = timing.ended.count();
    record.exposed_ns = timing.exposed.count();
    recorder_.collective(record);
  }

 private:
  const comm::Communicator& communicator_;
  profile::Recorder& recorder_;
};

}  // namespace dtrain::train
