// What is one call of a collective, and what do all ranks' inputs come to?
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nccl.h>

namespace dtrain::test::fake_gpu {

enum class CallKind : std::uint32_t { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather };

// What a rank tells the others of its call.
struct CallHeader {
  CallKind kind{};
  std::uint32_t type = 0;  // ncclDataType_t
  std::int32_t op = -1;    // ncclRedOp_t of NCCL itself; -1: it reduces nothing
  std::int32_t root = -1;  // -1: it has none
  std::uint64_t count = 0;
  std::uint64_t scaled = 0;  // the rank multiplies its input by the scalar
  std::byte scalar[8] = {};  // of the data's type; each rank has its own
};

struct Call {
  CallHeader header;
  const void* in = nullptr;
  void* out = nullptr;
};

std::string_view name_of(CallKind kind);
std::string describe(const CallHeader& call);  // "ncclAllReduce(5000 x float32, sum)"
// Whether ranks may make the two calls as one operation.
bool match(const CallHeader& one, const CallHeader& other);
std::size_t size_of(std::uint32_t type);  // 0: no type that the fake knows

// Elements that a rank gives to the others, and that it gets.
std::size_t elements_in(const CallHeader& call, int rank, int ranks);
std::size_t elements_out(const CallHeader& call, int rank, int ranks);

// Elements of all ranks in the ranks' order: ((r0 + r1) + r2) + …, each step rounded to the data's type. `inputs` are
// aligned to 8 bytes, `calls` are the ranks' own.
void reduce(const std::vector<CallHeader>& calls, const std::vector<std::vector<std::uint64_t>>& inputs,
            std::size_t count, void* out);

}  // namespace dtrain::test::fake_gpu
