// The description of a collective operation: the part that must be the same on all ranks, and functions that compare,
// measure and name descriptions. Every backend uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collective/reduce.h"
#include "dtrain/base/pulse.h"
#include "dtrain/comm/types.h"

namespace dtrain::comm {

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kReduceParts,
  kAllGather,
  kGatherParts,
  kBroadcast,
  kBarrier,
  kAllocate,
  kAllocateCommon,
  kReduce
};

inline constexpr std::int32_t kNowhere = -1;
inline constexpr std::int32_t kInArena = -2;

// The position of data in memory that the ranks share.
struct Place {
  std::uint64_t offset = 0;
  std::int32_t buffer = kNowhere;  // the number of a Buffer, kInArena (the rank's), or kNowhere: peers cannot reach it
};

// The part of an operation's description that must be the same on all ranks.
struct Signature {
  std::uint64_t count = 0;
  double pre_scale = 1.0;
  double post_scale = 1.0;
  std::int32_t bucket = -1;
  std::int32_t root = -1;
  Kind kind = Kind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

// The announcement that one rank makes of one operation.
struct Descriptor : Signature {
  std::uint64_t sequence = 0;
  Place in;
  Place out;  // set where peers write: for all_reduce, and for reduce on its root
};

// Bytes of this rank's `in` and `out`.
std::size_t in_bytes(const Signature& d, int world_size);
std::size_t out_bytes(const Signature& d, int world_size);
// Returns the larger of the two, which is the operation's payload in records.
std::size_t payload_bytes(const Signature& d, int world_size);

bool reduces(Kind kind);
Reduction reduction_of(const Signature& d, int world_size);

// True if operation, type, size, bucket, root and scales are the same.
bool same_operation(const Signature& a, const Signature& b);
// Returns "all_reduce(sum, float32, 100 elements, bucket 3)".
std::string describe(const Signature& d);
// Returns the same with the operation's number: "…, operation 34".
std::string describe(const Signature& d, std::uint64_t sequence);
// Returns the operation as a wait for it is shown.
ShownOperation shown(const Signature& d, std::uint64_t sequence, int world_size);

}  // namespace dtrain::comm
