#include "shared_memory/transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collective/descriptor.h"
#include "collective/reduce.h"

namespace dtrain::comm {
namespace {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes && to != from) std::memcpy(to, from, bytes);
}

void reduce_part(const Descriptor& d, int world_size, const Scratch& scratch, std::size_t count) {
  const Reduction reduction = reduction_of(d, world_size);
  if (is_identity(reduction, scratch.inputs.size()) && scratch.outputs.size() == 1) {
    return copy_bytes(scratch.outputs[0], scratch.inputs[0], count * size_of(d.type));
  }
  if (count) reduce_into(reduction, scratch.inputs, scratch.outputs, count);
}

}  // namespace

Transfer::Transfer(const Descriptor& descriptor, const void* in, void* out, int rank, int world_size)
    : descriptor_(descriptor),
      in_(static_cast<const std::byte*>(in)),
      out_(static_cast<std::byte*>(out)),
      rank_(rank),
      world_size_(world_size),
      size_(size_of(descriptor.type)),
      in_bytes_(comm::in_bytes(descriptor, world_size)),
      payload_(payload_bytes(descriptor, world_size)),
      reduces_(reduces(descriptor.kind)),
      inline_(in_bytes_ <= inline_limit(world_size)) {}

void Transfer::set_places(const BufferTable& buffers) {
  descriptor_.in = buffers.locate(in_, in_bytes_);
  if (gets_results(rank_)) {
    descriptor_.out = out_ == in_ ? descriptor_.in : buffers.locate(out_, out_bytes(descriptor_, world_size_));
  }
}

void Transfer::stage_registered() {
  registered_in_ = std::exchange(descriptor_.in, Place{});
  registered_out_ = std::exchange(descriptor_.out, Place{});
  staged_by_choice_ = true;
}

bool Transfer::lacks_place() const {
  if (descriptor_.kind == Kind::kBroadcast && descriptor_.root != rank_) return false;
  return descriptor_.in.buffer == kNowhere || (gets_results(rank_) && descriptor_.out.buffer == kNowhere);
}

void Transfer::use_scratch(std::byte* scratch, const BufferTable& buffers) {
  scratch_ = scratch;
  for (int owner = 0; owner < world_size_; ++owner) {
    if (reduces_ == (owner == rank_)) continue;  // as in copy_in()
    const Part part = owned(owner);
    if (part.size()) copy_bytes(in_scratch(part.begin), own_in(part.begin), part.size() * size_);
  }
  descriptor_.in = buffers.locate(scratch, in_bytes_);
  if (gets_results(rank_)) descriptor_.out = descriptor_.in;
}

void Transfer::take_result() const {
  if (!gets_results(rank_)) return;
  for (int owner = 0; owner < world_size_; ++owner) {
    const Part part = owned(owner);
    if (owner != rank_ && part.size()) {
      copy_bytes(own_out(part.begin), in_scratch(part.begin), part.size() * size_);
    }
  }
}

void Transfer::plan(const Segment& segment, const BufferTable& buffers, std::uint64_t base) {
  planned_ = true;
  base_ = base;
  steps_ = 1;
  if (inline_) return;
  if (staged_by_choice_) {  // CommError if a Buffer was released meanwhile
    buffers.resolve(rank_, registered_in_, in_bytes_);
    buffers.resolve(rank_, registered_out_, in_bytes_);
  }
  shared_.resize(2 * static_cast<std::size_t>(world_size_));
  const bool hands_out = descriptor_.kind == Kind::kAllReduce || descriptor_.kind == Kind::kReduce;
  for (int r = 0; r < world_size_; ++r) {
    if (descriptor_.kind == Kind::kBroadcast && r != descriptor_.root) continue;
    const Announcement& theirs = segment.rank(r).slot(descriptor_.sequence);
    const auto at = static_cast<std::size_t>(r);
    shared_[at] = buffers.resolve(r, theirs.in, in_bytes_);
    if (gets_results(r))
      shared_[static_cast<std::size_t>(world_size_) + at] = buffers.resolve(r, theirs.out, in_bytes_);
    staged_ = staged_ || !shared_in(r) || (gets_results(r) && !shared_out(r));
  }
  if (!staged_) return;
  const std::size_t room = reduces_ ? kStagingHalf / static_cast<std::size_t>(world_size_) : kStagingHalf;
  piece_size_ = std::max(room / kCacheLine, std::size_t{1}) * kCacheLine / size_;
  std::size_t largest = 0;
  for (int r = 0; r < world_size_; ++r) largest = std::max(largest, owned(r).size());
  pieces_ = static_cast<std::uint32_t>((largest + piece_size_ - 1) / piece_size_);
  steps_ = pieces_ + (hands_out ? 2 : 1);
}

bool Transfer::staged_here() const {
  const bool gives = descriptor_.kind != Kind::kBroadcast || rank_ == descriptor_.root;
  return staged_ && ((gives && !shared_in(rank_)) || (gets_results(rank_) && !shared_out(rank_)));
}

std::uint64_t Transfer::required_phase() const {
  if (has_step()) return step_ == 0 && !staged_ ? 0 : base_ + step_;
  return inline_ ? 0 : base_ + steps_;  // peers still read this rank's memory until they are done as well
}

// In the pipeline step k copies piece k in, moves piece k - 1 and (where results come) copies piece k - 2 out. The
// halves of a staging area alternate, so piece k - 2 must be out before piece k overwrites it: copy_out() comes first.
void Transfer::run_step(const Segment& segment, Scratch& scratch) {
  if (inline_) {
    run_inline(segment, scratch);
  } else if (!staged_) {
    run_direct(scratch);
  } else {
    if (gets_results(rank_) && step_ >= 2) copy_out(segment, step_ - 2);
    copy_in(segment, step_);
    if (step_ >= 1) move(segment, step_ - 1, scratch);
  }
  ++step_;
}

Part Transfer::owned(int owner) const {
  switch (descriptor_.kind) {
    case Kind::kReduceScatter:
    case Kind::kAllGather:
      return {static_cast<std::size_t>(owner) * descriptor_.count,
              (static_cast<std::size_t>(owner) + 1) * descriptor_.count};
    case Kind::kBroadcast:
      return {0, owner == descriptor_.root ? descriptor_.count : 0};
    default:
      return part_of(descriptor_.count, descriptor_.type, owner, world_size_);
  }
}

Part Transfer::owned(int owner, std::uint32_t piece) const {
  const Part whole = owned(owner);
  const auto at = [&](std::size_t p) { return std::min(whole.end, whole.begin + p * piece_size_); };
  return {at(piece), at(std::size_t{piece} + 1)};
}

std::size_t Transfer::in_first(int rank) const {
  return descriptor_.kind == Kind::kAllGather ? static_cast<std::size_t>(rank) * descriptor_.count : 0;
}

std::size_t Transfer::out_first() const {
  return descriptor_.kind == Kind::kReduceScatter ? static_cast<std::size_t>(rank_) * descriptor_.count : 0;
}

void Transfer::run_inline(const Segment& segment, Scratch& scratch) const {
  if (payload_ == 0) return;
  const auto payload = [&](int r) { return segment.rank(r).slot(descriptor_.sequence).payload(in_bytes_); };
  if (descriptor_.kind == Kind::kReduce && rank_ != descriptor_.root) return;
  if (reduces_) {
    const Part part = gets_results(rank_) ? Part{0, descriptor_.count} : owned(rank_);
    scratch.inputs.clear();
    for (int r = 0; r < world_size_; ++r) scratch.inputs.push_back(payload(r) + part.begin * size_);
    scratch.outputs.assign(1, own_out(part.begin));
    return reduce_part(descriptor_, world_size_, scratch, part.size());
  }
  for (int r = 0; r < world_size_; ++r) {
    const Part part = owned(r);
    copy_bytes(own_out(part.begin), payload(r) + (part.begin - in_first(r)) * size_, part.size() * size_);
  }
}

void Transfer::run_direct(Scratch& scratch) const {
  if (reduces_) {
    const Part part = owned(rank_);
    scratch.inputs.clear();
    scratch.outputs.clear();
    for (int r = 0; r < world_size_; ++r) {
      const bool own = r == rank_;
      scratch.inputs.push_back(own ? own_in(part.begin) : shared_in(r) + part.begin * size_);
      if (gets_results(r)) {
        scratch.outputs.push_back(own ? own_out(part.begin) : shared_out(r) + part.begin * size_);
      }
    }
    if (scratch.outputs.empty()) scratch.outputs.push_back(own_out(part.begin));
    return reduce_part(descriptor_, world_size_, scratch, part.size());
  }
  for (int i = 1; i <= world_size_; ++i) {  // each rank begins with another, its own part comes last
    const int r = (rank_ + i) % world_size_;
    const Part part = owned(r);
    if (part.size() == 0) continue;
    const std::byte* const from = r == rank_ ? own_in(part.begin) : shared_in(r) + (part.begin - in_first(r)) * size_;
    copy_bytes(own_out(part.begin), from, part.size() * size_);
  }
}

std::byte* Transfer::staging(const Segment& segment, int rank, int owner, std::uint32_t piece) const {
  std::byte* const half = segment.staging(rank) + (piece % 2) * kStagingHalf;
  return half + (reduces_ ? static_cast<std::size_t>(owner) * piece_size_ * size_ : 0);
}

void Transfer::copy_in(const Segment& segment, std::uint32_t piece) const {
  if (piece >= pieces_ || shared_in(rank_)) return;
  for (int owner = 0; owner < world_size_; ++owner) {
    if (reduces_ == (owner == rank_)) continue;  // reductions: parts of other owners; else this rank's part
    const Part part = owned(owner, piece);
    if (part.size()) copy_bytes(staging(segment, rank_, owner, piece), own_in(part.begin), part.size() * size_);
  }
}

void Transfer::move(const Segment& segment, std::uint32_t piece, Scratch& scratch) const {
  if (piece >= pieces_) return;
  if (reduces_) {
    const Part part = owned(rank_, piece);
    if (part.size() == 0) return;
    scratch.inputs.clear();
    scratch.outputs.clear();
    for (int r = 0; r < world_size_; ++r) {
      std::byte* const through = staging(segment, r, rank_, piece);
      const auto at = [&](std::byte* shared) { return shared ? shared + part.begin * size_ : through; };
      scratch.inputs.push_back(r == rank_ ? own_in(part.begin) : at(shared_in(r)));
      if (gets_results(r)) scratch.outputs.push_back(r == rank_ ? own_out(part.begin) : at(shared_out(r)));
    }
    if (scratch.outputs.empty()) scratch.outputs.push_back(own_out(part.begin));
    return reduce_part(descriptor_, world_size_, scratch, part.size());
  }
  for (int i = 1; i <= world_size_; ++i) {
    const int r = (rank_ + i) % world_size_;
    const Part part = owned(r, piece);
    if (part.size() == 0) continue;
    const std::byte* const shared = shared_in(r);
    const std::byte* const from = r == rank_ ? own_in(part.begin)
                                  : shared   ? shared + (part.begin - in_first(r)) * size_
                                             : staging(segment, r, r, piece);
    copy_bytes(own_out(part.begin), from, part.size() * size_);
  }
}

void Transfer::copy_out(const Segment& segment, std::uint32_t piece) const {
  if (piece >= pieces_ || shared_out(rank_)) return;
  for (int owner = 0; owner < world_size_; ++owner) {
    if (owner == rank_) continue;
    const Part part = owned(owner, piece);
    if (part.size()) copy_bytes(own_out(part.begin), staging(segment, rank_, owner, piece), part.size() * size_);
  }
}

}  // namespace dtrain::comm
