// A copy of parameters and optimizer state that is taken while updates run. An update reads and writes them anyway, so
// a copy next to it costs the writing alone, and training never stops for a copy of everything.
//
// The copy has the state between two updates. The first update copies some of the blocks after it has updated them, the
// second copies the others before it updates them: so each copies half. Without the first, the second copies all.
// Between the two nothing else may change the values. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "model/tensor_memory.h"

namespace dtrain::train {

class UpdateCopy {
 public:
  // `in_two`: the next update is the first of the two; otherwise it is the second.
  explicit UpdateCopy(bool in_two) : first_update_(in_two) {}

  // The source and target of one copy: there is one for the values, and one for each tensor of the optimizer's state.
  struct Piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    bool operator==(const Piece&) const = default;
  };
  // Adds a stretch of one parameter: the first `elements` of each piece are copied, with `element_size` bytes each; the
  // rest of the range is padding. Stretches of a group come in ascending order and do not overlap.
  void add(const FlatRange& range, std::int64_t elements, std::size_t element_size, std::span<const Piece> pieces);
  // To be called after the last add().
  void divide();

  // Calls `update` for all of the range, part by part, and copies the blocks whose turn it is.
  void run(const FlatRange& range, const std::function<void(const FlatRange&)>& update);
  // The same for a range that is updated at once: to be called before any of it is changed, and after all of it is.
  void before(const FlatRange& range);
  void after(const FlatRange& range);
  // To be called after an update. Copies the blocks of that update which it did not touch.
  void end_update();
  // Copies everything that is left, between the two updates.
  void finish();
  // True if `other` copies the same bytes from and to the same places.
  bool copies_same(const UpdateCopy& other) const;
  bool finished() const { return finished_; }
  // The places to which it copies.
  std::vector<std::span<std::byte>> targets() const;

  // Notes that values were changed before they were copied: the copy is worth nothing.
  void spoil() { spoiled_ = true; }
  bool spoiled() const { return spoiled_; }
  double seconds() const { return to_seconds(time_); }  // spent on copying

 private:
  struct Copy {
    Piece piece;
    std::size_t bytes = 0;
    bool operator==(const Copy&) const = default;
  };
  struct Block {  // elements that are updated and copied at once
    FlatRange range;
    std::vector<Copy> copies;
    bool at_first = false;     // the first update copies it
    std::int64_t updated = 0;  // elements that the first update has updated
    bool done = false;
  };
  bool is_due(const Block& block) const { return !block.done && block.at_first == first_update_; }
  // Calls `use` with each block that is due and has elements in the range, and with their number.
  void for_due_blocks(const FlatRange& range, const std::function<void(Block&, std::int64_t)>& use);
  void copy(Block& block);

  std::vector<Block> blocks_;
  bool first_update_;
  SystemClock clock_;
  Nanoseconds time_{0};
  bool finished_ = false;
  bool spoiled_ = false;
};

// Copies so that the bytes written do not push others out of the processor's cache.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace dtrain::train
