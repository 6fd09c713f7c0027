// The phases of a step. Every nanosecond of a step belongs to exactly one of them; kOther is the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtrain::profile {

enum class Phase : std::uint8_t {
  kDataloaderNext,
  kToDevice,
  kTrainBatch,     // the rest of train_batch(): neither forward nor backward nor communication
  kForward,        // "train_batch.forward"
  kBackward,       // "train_batch.backward"
  kGraph,          // a whole step as a replayed CUDA graph: computing, exchange and update, which have no times in it
  kAllreduceWait,  // exposed communication: waiting for, or doing, collectives on the training thread
  kOptimizerStep,
  kStepLrSchedulers,
  kFromDevice,
  kReduceMetrics,
  kCallbacks,
  kCheckpoint,
  kValidation,
  kDeviceWait,  // the host waits until its device is at most a few batches behind; 0 if phases are timed on it
  kOther,
  kCount
};

inline constexpr std::size_t kPhaseCount = static_cast<std::size_t>(Phase::kCount);
using PhaseTimes = std::array<std::int64_t, kPhaseCount>;  // nanoseconds, indexed by Phase

// The name in dumps and summaries ("dataloader_next", "train_batch.forward", …). In dumps "train_batch" is the whole
// of train_batch(): itself + .forward + .backward.
std::string_view name_of(Phase phase);

}  // namespace dtrain::profile
