// Interface by which a communicator allocates memory that all ranks can reach.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/release_pages.h"

namespace dtrain::comm {

// One allocation: the addresses of each rank's part in this process. Unmapped when the last owner releases it.
struct Region {
  virtual ~Region() = default;
  std::vector<std::byte*> bases;  // by rank; one element for memory common to all
  std::size_t bytes = 0;          // of each part
  PageKind pages = PageKind::kPrivate;
};

// A waiting rank calls the check every few milliseconds; the check throws when waiting has become pointless. `missing`
// names the ranks that are waited for, for the text of a time-out.
using WaitCheck = std::function<void(const std::function<std::string()>& missing)>;

// Time that the other ranks wait for memory longer than rank 0.
inline constexpr std::chrono::milliseconds kRankZeroHeadStart{500};

class Memory {
 public:
  virtual ~Memory() = default;
  // Allocates memory. Collective, in the same order with the same size on every rank (the communicator compares them).
  // Each part is zeroed and aligned to 64 bytes.
  virtual std::shared_ptr<Region> allocate(std::size_t bytes, const WaitCheck& check) = 0;
  // Allocates one memory for all ranks: `bases` has one element.
  virtual std::shared_ptr<Region> allocate_common(std::size_t bytes, const WaitCheck& check) = 0;
};

}  // namespace dtrain::comm
