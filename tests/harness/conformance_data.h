// Memory for conformance cases: inside a Buffer or outside, as asked. One rank's thread.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/comm/communicator.h"
#include "harness/conformance.h"
#include "harness/elements.h"

namespace dtrain::test {

// Where a case puts its data: all ranks in Buffers, none, or only those of even rank.
enum class Placing { kRegistered, kPlain, kMixed };
inline constexpr Placing kAllPlacings[] = {Placing::kRegistered, Placing::kPlain, Placing::kMixed};

inline const char* name_of(Placing placing) {
  return placing == Placing::kRegistered ? "in Buffers" : placing == Placing::kPlain ? "outside" : "in some Buffers";
}

// Two areas, `in` and `out`, of `bytes` each.
class Areas {
 public:
  Areas(comm::Communicator& comm, std::size_t bytes)
      : rank_(comm.rank()), bytes_(bytes), buffer_(comm.allocate(2 * (bytes + kRoom))), plain_(2 * (bytes + kRoom)) {}

  // Not at the begin of a cache line: no collective may rely on that.
  std::byte* in(Placing placing) { return base(placing) + 8; }
  std::byte* out(Placing placing) { return base(placing) + bytes_ + kRoom + 8; }

 private:
  static constexpr std::size_t kRoom = 64;
  std::byte* base(Placing placing) {
    const bool registered = placing == Placing::kRegistered || (placing == Placing::kMixed && rank_ % 2 == 0);
    return registered ? buffer_->bytes().data() : plain_.data();
  }
  int rank_;
  std::size_t bytes_;
  std::unique_ptr<comm::Buffer> buffer_;
  std::vector<std::byte> plain_;
};

// The cases of the suite's parts.
std::vector<ConformanceCase> reduction_cases(const ConformanceTraits& traits);
std::vector<ConformanceCase> exactness_cases(const ConformanceTraits& traits);
std::vector<ConformanceCase> movement_cases();
std::vector<ConformanceCase> handling_cases();

}  // namespace dtrain::test
