// A copy of parameters and optimizer state that is taken while updates run. An update reads and writes them anyway, so
// a copy next to it costs the writing alone, and training never stops for a copy of everything.
//
// What is copied is the state between two updates. The first of them copies some of the blocks after it has updated
// them, the second the others before it updates them: so each copies half. Without the first, the second copies all.
// Between the two nothing else may change the values. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "model/flat_memory.h"

namespace dtrain::train {

class UpdateCopy {
 public:
  // `in_two`: the next update is the first of the two; else it is the second.
  explicit UpdateCopy(bool in_two) : first_update_(in_two) {}

  // From where to where: of the values, and of each tensor of the optimizer's state.
  struct Piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    bool operator==(const Piece&) const = default;
  };
  // Adds a stretch of one parameter: of its pieces the first `elements` are copied, each of `element_size` bytes; the
  // rest of the range is padding. Stretches of a group come in ascending order and do not overlap.
  void add(const FlatRange& range, std::int64_t elements, std::size_t element_size, std::span<const Piece> pieces);
  // After the last add().
  void divide();

  // Calls `update` for all of the range, part by part, and copies the blocks whose turn it is.
  void run(const FlatRange& range, const std::function<void(const FlatRange&)>& update);
  // The same for a range that is updated at once: to be called before any of it is changed, and after all of it is.
  void before(const FlatRange& range);
  void after(const FlatRange& range);
  // An update is over. Copies what it was to copy and did not touch.
  void end_update();
  // Copies everything that is left, between the two updates.
  void finish();
  // Whether the other copies the same bytes from and to the same places.
  bool copies_same(const UpdateCopy& other) const;
  bool finished() const { return finished_; }
  // Where it copies to.
  std::vector<std::span<std::byte>> targets() const;

  // Values were changed before they were copied: the copy is worth nothing.
  void spoil() { spoiled_ = true; }
  bool spoiled() const { return spoiled_; }
  double seconds() const { return to_seconds(time_); }  // spent on copying

 private:
  struct Copy {
    Piece piece;
    std::size_t bytes = 0;
    bool operator==(const Copy&) const = default;
  };
  struct Block {  // what is updated and copied at once
    FlatRange range;
    std::vector<Copy> copies;
    bool at_first = false;     // the first update copies it
    std::int64_t updated = 0;  // elements, by the first update
    bool done = false;
  };
  bool is_due(const Block& block) const { return !block.done && block.at_first == first_update_; }
  // Calls `use` with each block that is due and has elements in the range, and their number.
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
