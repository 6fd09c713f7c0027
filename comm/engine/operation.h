// One outstanding collective of this rank: what it is, how many steps it takes, and running one of them.
//
// An operation is a fixed list of steps; each rank counts the steps it has done (RankBlock::phase) and a step may run
// once all ranks have done the one before. How many there are follows from the descriptors of all ranks, so every rank
// counts alike:
//   inline payload: 1, each rank reduces or copies out of the descriptors;
//   all data in Buffers: 1, each rank reduces its own chunk into everyone's memory, or copies from its peers';
//   else in pieces through the staging area: copy in, move, copy out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "engine/segment.h"

namespace dtrain::comm {

class Engine;

class Operation final : public WorkState {
 public:
  Operation(Engine* engine, const Descriptor& descriptor, const void* in, void* out);

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override;
  std::uint64_t sequence() const override { return descriptor_.sequence; }

  const Descriptor& descriptor() const { return descriptor_; }
  bool is_inline() const { return inline_; }

  // Once all ranks have entered it. `resolve` gives the address of a rank's data, null when it is not in a Buffer.
  using Resolve = std::function<std::byte*(int rank, const Descriptor& theirs)>;
  void plan(const Segment& segment, int world_size, std::uint64_t base, const Resolve& resolve);
  bool planned() const { return planned_; }

  bool has_step() const { return step_ < steps_; }
  // The phase that all ranks must have reached before the next step (or, with none left, completion); 0: none.
  std::uint64_t required_phase() const;
  void run_step(const Segment& segment, int rank, int world_size);
  std::uint64_t end_phase() const { return base_ + steps_; }

 private:
  friend class Engine;

  void reduce_inline(const Segment& segment, int world_size);
  void reduce_range(const Segment& segment, int rank, int world_size, std::size_t begin, std::size_t bytes);
  void run_inline(const Segment& segment, int world_size);
  void run_all_reduce(const Segment& segment, int rank, int world_size);
  void run_all_gather(const Segment& segment, int rank, int world_size);
  void run_broadcast(const Segment& segment, int rank);
  std::byte* part(const Segment& segment, int rank, std::size_t begin) const;
  std::size_t piece_begin(std::uint32_t piece) const { return piece * kStagingBytes; }
  std::size_t piece_bytes(std::uint32_t piece) const;

  Engine* engine_;  // null once the communicator is gone
  Descriptor descriptor_;
  const void* in_;
  void* out_;
  bool inline_ = false;
  bool planned_ = false;
  bool staged_ = false;
  std::uint32_t pieces_ = 1;
  std::uint32_t steps_ = 0;
  std::uint32_t step_ = 0;
  std::uint64_t base_ = 0;
  std::vector<std::byte*> parts_;  // each rank's data, null: through its staging area
  bool complete_ = false;
  std::string failed_;  // why it will never complete
  WorkTiming timing_;
};

}  // namespace dtrain::comm
