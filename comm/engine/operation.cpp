#include "engine/operation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "dtrain/base/error.h"
#include "engine/descriptor.h"
#include "engine/engine.h"
#include "engine/reduce.h"

namespace dtrain::comm {
namespace {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes && to != from) std::memcpy(to, from, bytes);
}

// The part of [0, bytes) that `rank` reduces; boundaries on cache lines, so that no two ranks write the same line.
std::pair<std::size_t, std::size_t> own_chunk(std::size_t bytes, int rank, int world_size) {
  const std::size_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const auto boundary = [&](int r) {
    return std::min(bytes, lines * static_cast<std::size_t>(r) / static_cast<std::size_t>(world_size) * kCacheLine);
  };
  return {boundary(rank), boundary(rank + 1)};
}

}  // namespace

Operation::Operation(Engine* engine, const Descriptor& descriptor, const void* in, void* out)
    : engine_(engine),
      descriptor_(descriptor),
      in_(in),
      out_(out),
      inline_(payload_bytes(descriptor) <= kInlineBytes) {}

bool Operation::test() {
  if (!failed_.empty()) throw CommError(failed_);
  if (!complete_) engine_->progress();
  return complete_;
}

void Operation::wait() {
  if (complete_) return;
  if (!failed_.empty()) throw CommError(failed_);
  engine_->wait_for(*this);
}

std::size_t Operation::bytes() const {
  return payload_bytes(descriptor_);
}

std::size_t Operation::piece_bytes(std::uint32_t piece) const {
  return std::min(kStagingBytes, bytes() - piece_begin(piece));
}

void Operation::plan(const Segment& segment, int world_size, std::uint64_t base, const Resolve& resolve) {
  planned_ = true;
  base_ = base;
  steps_ = 1;
  if (inline_) return;
  parts_.resize(static_cast<std::size_t>(world_size));
  for (int r = 0; r < world_size; ++r) {
    if (descriptor_.kind == Kind::kBroadcast && r != descriptor_.root) continue;
    auto& part = parts_[static_cast<std::size_t>(r)];
    part = resolve(r, segment.rank(r).ring[descriptor_.sequence % kRingSlots]);
    staged_ = staged_ || !part;
  }
  if (!staged_) return;
  pieces_ = static_cast<std::uint32_t>((bytes() + kStagingBytes - 1) / kStagingBytes);
  steps_ = 2 * pieces_ + (descriptor_.kind == Kind::kAllReduce ? 1 : 0);
}

std::uint64_t Operation::required_phase() const {
  if (has_step()) return step_ == 0 && !staged_ ? 0 : base_ + step_;
  return inline_ ? 0 : base_ + steps_;  // peers still read this rank's memory until they are done as well
}

void Operation::run_step(const Segment& segment, int rank, int world_size) {
  if (inline_) {
    run_inline(segment, world_size);
  } else {
    switch (descriptor_.kind) {
      case Kind::kAllReduce:
        run_all_reduce(segment, rank, world_size);
        break;
      case Kind::kAllGather:
        run_all_gather(segment, rank, world_size);
        break;
      case Kind::kBroadcast:
        run_broadcast(segment, rank);
        break;
      case Kind::kBarrier:
      case Kind::kAllocate:
        break;
    }
  }
  ++step_;
}

std::byte* Operation::part(const Segment& segment, int rank, std::size_t begin) const {
  std::byte* const own = parts_[static_cast<std::size_t>(rank)];
  return own ? own + begin : segment.staging(rank);
}

void Operation::reduce_inline(const Segment& segment, int world_size) {
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(world_size));
  for (int r = 0; r < world_size; ++r) {
    inputs[static_cast<std::size_t>(r)] = segment.rank(r).ring[descriptor_.sequence % kRingSlots].payload;
  }
  std::byte* const output = static_cast<std::byte*>(out_);
  reduce_into(static_cast<DataType>(descriptor_.type), static_cast<ReduceOp>(descriptor_.op), inputs, {&output, 1},
              descriptor_.count, descriptor_.post_scale);
}

void Operation::run_inline(const Segment& segment, int world_size) {
  const std::size_t size = bytes();
  const auto payload = [&](int r) { return segment.rank(r).ring[descriptor_.sequence % kRingSlots].payload; };
  if (size == 0) return;
  if (descriptor_.kind == Kind::kAllReduce) return reduce_inline(segment, world_size);
  if (descriptor_.kind == Kind::kBroadcast) return copy_bytes(out_, payload(descriptor_.root), size);
  for (int r = 0; r < world_size; ++r) {
    copy_bytes(static_cast<std::byte*>(out_) + static_cast<std::size_t>(r) * size, payload(r), size);
  }
}

void Operation::reduce_range(const Segment& segment, int rank, int world_size, std::size_t begin, std::size_t size) {
  const auto [first, last] = own_chunk(size, rank, world_size);
  if (first == last) return;
  if (world_size == 1 && descriptor_.post_scale == 1.0) return;
  std::vector<std::byte*> data(static_cast<std::size_t>(world_size));
  for (int r = 0; r < world_size; ++r) data[static_cast<std::size_t>(r)] = part(segment, r, begin) + first;
  const auto type = static_cast<DataType>(descriptor_.type);
  reduce_into(type, static_cast<ReduceOp>(descriptor_.op), data, data, (last - first) / size_of(type),
              descriptor_.post_scale);
}

// Step 2p: copy out piece p-1, copy in piece p; step 2p+1: reduce piece p.
void Operation::run_all_reduce(const Segment& segment, int rank, int world_size) {
  if (!staged_) return reduce_range(segment, rank, world_size, 0, bytes());
  const std::uint32_t piece = step_ / 2;
  if (step_ % 2) return reduce_range(segment, rank, world_size, piece_begin(piece), piece_bytes(piece));
  if (parts_[static_cast<std::size_t>(rank)]) return;
  std::byte* const data = static_cast<std::byte*>(out_);
  if (piece > 0) copy_bytes(data + piece_begin(piece - 1), segment.staging(rank), piece_bytes(piece - 1));
  if (piece < pieces_) copy_bytes(segment.staging(rank), data + piece_begin(piece), piece_bytes(piece));
}

// Step 2p: copy in piece p; step 2p+1: copy piece p from every peer.
void Operation::run_all_gather(const Segment& segment, int rank, int world_size) {
  const std::uint32_t piece = staged_ ? step_ / 2 : 0;
  const std::size_t begin = staged_ ? piece_begin(piece) : 0;
  const std::size_t size = staged_ ? piece_bytes(piece) : bytes();
  if (staged_ && step_ % 2 == 0) {
    if (parts_[static_cast<std::size_t>(rank)]) return;
    return copy_bytes(segment.staging(rank), static_cast<const std::byte*>(in_) + begin, size);
  }
  for (int r = 0; r < world_size; ++r) {
    std::byte* const to = static_cast<std::byte*>(out_) + static_cast<std::size_t>(r) * bytes() + begin;
    copy_bytes(to, r == rank ? static_cast<const std::byte*>(in_) + begin : part(segment, r, begin), size);
  }
}

// The same, from the root alone.
void Operation::run_broadcast(const Segment& segment, int rank) {
  const std::uint32_t piece = staged_ ? step_ / 2 : 0;
  const std::size_t begin = staged_ ? piece_begin(piece) : 0;
  const std::size_t size = staged_ ? piece_bytes(piece) : bytes();
  const bool root = rank == descriptor_.root;
  std::byte* const data = static_cast<std::byte*>(out_) + begin;
  if (staged_ && step_ % 2 == 0) {
    if (root) copy_bytes(segment.staging(rank), data, size);
  } else if (!root) {
    copy_bytes(data, part(segment, descriptor_.root, begin), size);
  }
}

}  // namespace dtrain::comm
