// Reports to a recorder how much device memory the rank uses. The training thread calls it at changes of phase, in some
// of the steps.
#pragma once

#include <cstdint>

namespace dtrain::profile {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  struct Reading {
    std::int64_t allocated = 0;  // bytes in tensors
    std::int64_t reserved = 0;   // bytes taken from the device, for these tensors and for later ones
    std::int64_t peak = 0;       // the most that was allocated since the last call
  };
  virtual Reading take() = 0;
  virtual int device() const = 0;  // its number
};

}  // namespace dtrain::profile
