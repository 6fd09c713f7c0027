#include "dtrain/profile/phase.h"

namespace dtrain::profile {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kDataloaderNext:
      return "dataloader_next";
    case Phase::kToDevice:
      return "to_device";
    case Phase::kTrainBatch:
      return "train_batch";
    case Phase::kForward:
      return "train_batch.forward";
    case Phase::kBackward:
      return "train_batch.backward";
    case Phase::kGraph:
      return "graph";
    case Phase::kAllreduceWait:
      return "allreduce_wait";
    case Phase::kOptimizerStep:
      return "optimizer_step";
    case Phase::kStepLrSchedulers:
      return "step_lr_schedulers";
    case Phase::kFromDevice:
      return "from_device";
    case Phase::kReduceMetrics:
      return "reduce_metrics";
    case Phase::kCallbacks:
      return "callbacks";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kValidation:
      return "validation";
    case Phase::kDeviceWait:
      return "device_wait";
    case Phase::kOther:
      return "other";
    case Phase::kCount:
      break;
  }
  return "unknown";
}

}  // namespace dtrain::profile
