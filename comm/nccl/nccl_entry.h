// The operation or replay that a rank has entered, as errors name it and ranks compare it.
#pragma once

#include <memory>
#include <string>

#include "collective/descriptor.h"

namespace dtrain::comm {

struct NcclEntry {
  Descriptor descriptor;                      // of a replay the sequence number alone counts
  std::shared_ptr<const std::string> replay;  // name of a replayed graph; null: an operation
};

inline std::string describe(const NcclEntry& entry) {
  return entry.replay ? *entry.replay : describe(entry.descriptor);
}

}  // namespace dtrain::comm
