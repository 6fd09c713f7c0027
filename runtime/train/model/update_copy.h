// A copy of parameters and optimizer state that is taken while the next update runs. The update reads them anyway, so a
// copy just before it costs the writing alone, and no copy of everything has to be made at once.
//
// It copies values as they are before that update. Between the moment that it stands for and the update nothing may
// change them. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "model/flat_range.h"

namespace dtrain::train {

class UpdateCopy {
 public:
  // From where to where: of the values, and of each tensor of the optimizer's state.
  struct Piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };

  // Adds a stretch of one parameter: of its pieces the first `elements` are copied, each of `element_size` bytes; the
  // rest of the range is padding. Stretches of a group come in ascending order and do not overlap.
  void add(const FlatRange& range, std::int64_t elements, std::size_t element_size, std::span<const Piece> pieces);
  bool empty() const { return blocks_.empty(); }

  // Before `range` is updated: copies the stretches that it touches, each just before `update` is called for it.
  // `update` is called for all of the range, part by part.
  void before(const FlatRange& range, const std::function<void(const FlatRange&)>& update);
  // Copies what no update has touched.
  void finish();
  bool finished() const { return finished_; }
  // Values were changed before they were copied: the copy is worth nothing.
  void spoil() { spoiled_ = true; }
  bool spoiled() const { return spoiled_; }
  double seconds() const { return to_seconds(time_); }  // spent on copying

 private:
  struct Copy {
    Piece piece;
    std::size_t bytes = 0;
  };
  struct Block {  // what is copied, and then updated, at once
    FlatRange range;
    std::vector<Copy> copies;
    bool done = false;
  };
  void copy(Block& block);

  std::vector<Block> blocks_;
  SystemClock clock_;
  Nanoseconds time_{0};
  bool finished_ = false;
  bool spoiled_ = false;
};

// Copies so that the bytes written do not push others out of the processor's cache.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace dtrain::train
