// Moves the data of one operation in a fixed list of steps for each rank. A rank counts the steps it has done
// (RankBlock::phase), and a step may run once all ranks have done the one before. The number of steps follows from the
// announcements of all ranks, so every rank counts alike:
//   small payloads: one step; each rank reduces or copies the payloads beside the announcements;
//   data in Buffers or arenas: one step; each rank reduces its part from all ranks' memory (into all ranks' for
//   all_reduce, into the root's for reduce), or copies the others' parts out of theirs (an all_reduce may be staged all
//   the same, StagingChoice); else: pieces go through the staging areas; while one is reduced the next is copied in and
//   the one before out.
// Every element has one owner, the rank that reduces it or gives it to the others (part_of() for most operations).
// Belongs to an Operation; same thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared_memory/memory.h"
#include "shared_memory/segment.h"

namespace dtrain::comm {

// Room for pointers to every rank's data, kept by the communicator so that steps allocate nothing.
struct Scratch {
  explicit Scratch(int world_size) {
    inputs.reserve(static_cast<std::size_t>(world_size));
    outputs.reserve(static_cast<std::size_t>(world_size));
  }
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

class Transfer {
 public:
  Transfer(const Descriptor& descriptor, const void* in, void* out, int rank, int world_size);

  const Descriptor& descriptor() const { return descriptor_; }
  std::size_t payload() const { return payload_; }  // bytes, as records show it
  std::size_t in_bytes() const { return in_bytes_; }
  bool is_inline() const { return inline_; }
  // Sets the places of this rank's data for the peers. Called once, before the announcement; not for inline data.
  void set_places(const BufferTable& buffers);
  // After set_places(), for an all-reduce: is_registered() is true if peers can reach all of this rank's data;
  // stage_registered() sends such data through the staging area.
  bool is_registered() const { return descriptor_.in.buffer != kNowhere && descriptor_.out.buffer != kNowhere; }
  void stage_registered();
  bool staged_by_choice() const { return staged_by_choice_; }
  // After set_places(): true if peers use data of this rank that they cannot reach. use_scratch() copies what they read
  // to `scratch`, in_bytes() long, which they can reach; take_result() copies back what they have written there.
  bool lacks_place() const;
  void use_scratch(std::byte* scratch, const BufferTable& buffers);
  void take_result() const;
  // True, once planned, if no rank's data goes through the staging areas.
  bool is_direct() const { return !inline_ && !staged_; }

  // Called once all ranks have entered the operation, which begins at phase `base`. CommError as
  // BufferTable::resolve().
  void plan(const Segment& segment, const BufferTable& buffers, std::uint64_t base);
  bool planned() const { return planned_; }
  // True if data goes through this rank's staging area.
  bool staged_here() const;

  bool has_step() const { return step_ < steps_; }
  bool at_start() const { return step_ == 0; }
  // Returns the phase that all ranks must reach before the next step (or, with no step left, completion); 0: none.
  std::uint64_t required_phase() const;
  void run_step(const Segment& segment, Scratch& scratch);
  std::uint64_t end_phase() const { return base_ + steps_; }

 private:
  void run_inline(const Segment& segment, Scratch& scratch) const;
  void run_direct(Scratch& scratch) const;
  // The steps of staging; they do nothing for pieces that do not exist.
  void copy_in(const Segment& segment, std::uint32_t piece) const;
  void move(const Segment& segment, std::uint32_t piece, Scratch& scratch) const;
  void copy_out(const Segment& segment, std::uint32_t piece) const;

  // Elements are numbered over the whole operation: [0, world_size x count) for reduce_scatter and all_gather.
  // True if the owners write their results to this rank.
  bool gets_results(int rank) const {
    return descriptor_.kind == Kind::kAllReduce || (descriptor_.kind == Kind::kReduce && rank == descriptor_.root);
  }
  Part owned(int owner) const;
  Part owned(int owner, std::uint32_t piece) const;  // the part of it that goes with one piece
  const std::byte* own_in(std::size_t element) const { return in_ + (element - in_first(rank_)) * size_; }
  std::byte* own_out(std::size_t element) const { return out_ + (element - out_first()) * size_; }
  std::byte* in_scratch(std::size_t element) const { return scratch_ + (element - in_first(rank_)) * size_; }
  std::size_t in_first(int rank) const;  // the element a rank's `in` begins with
  std::size_t out_first() const;
  std::byte* shared_in(int rank) const { return shared_[static_cast<std::size_t>(rank)]; }
  std::byte* shared_out(int rank) const {
    return shared_[static_cast<std::size_t>(world_size_) + static_cast<std::size_t>(rank)];
  }
  std::byte* staging(const Segment& segment, int rank, int owner, std::uint32_t piece) const;

  Descriptor descriptor_;
  const std::byte* in_;
  std::byte* out_;
  int rank_;
  int world_size_;
  std::size_t size_;  // of an element
  std::size_t in_bytes_;
  std::size_t payload_;
  bool reduces_;
  bool inline_;
  bool planned_ = false;
  bool staged_ = false;
  bool staged_by_choice_ = false;
  std::byte* scratch_ = nullptr;          // what peers see in place of `in` and `out`; null: those
  Place registered_in_, registered_out_;  // with staged_by_choice_: the true places of the data
  std::uint32_t steps_ = 0;
  std::uint32_t step_ = 0;
  std::uint32_t pieces_ = 0;
  std::size_t piece_size_ = 0;  // elements of each owner in a piece
  std::uint64_t base_ = 0;
  std::vector<std::byte*> shared_;  // each rank's `in`, then each rank's `out`; null: not in a Buffer
};

}  // namespace dtrain::comm
