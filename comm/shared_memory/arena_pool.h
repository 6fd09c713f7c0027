// The pieces of an arena: which bytes are handed out, which are free, and which of these the kernel gets back. It
// counts in offsets and touches no memory itself.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/comm/arena.h"

namespace dtrain::comm {

// A range of bytes, begin included, end not.
struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const Extent&) const = default;
};

// Hands out the smallest free extent that is large enough, and merges free neighbours. Any thread may call.
//
// Pages stay with the pool when their piece is freed, so the next piece there takes no fault and no zeroing. Only where
// the pool has more pages than kReserve times the largest use of late, whole pages of large free extents go back.
class ArenaPool {
 public:
  static constexpr std::size_t kGranule = 64;                       // alignment and unit of pieces
  static constexpr double kReserve = 1.25;                          // pages kept, as a multiple of the largest use …
  static constexpr std::size_t kLeastKept = 64u << 20;              // … and at least this much
  static constexpr std::size_t kLeastReleased = 1u << 20;           // free extents that are smaller keep their pages
  static constexpr Nanoseconds kOfLate = std::chrono::seconds(30);  // the use of the last one to two such periods

  // Gives pages back to the kernel; false if it refuses.
  using Release = std::function<bool(const Extent& pages)>;
  ArenaPool(std::size_t capacity, std::size_t page, Release release, const Clock& clock);

  // Returns the offset of a new piece; empty: no extent is large enough.
  std::optional<std::size_t> allocate(std::size_t bytes);
  // False: no piece in use begins there. A pinned piece is given back with its last pin.
  bool free(std::size_t offset);
  // False unless the bytes are part of one piece that was not freed.
  bool pin(std::size_t offset, std::size_t bytes);
  void unpin(std::size_t offset);
  bool is_pinned(std::size_t offset) const;
  ArenaStatistics statistics() const;

 private:
  struct Piece {
    std::size_t end = 0;
    int pins = 0;
    bool freed = false;
  };
  using Pieces = std::map<std::size_t, Piece>;

  void give_back(Pieces::iterator piece);
  void add_free(Extent extent);
  void remove_free(const Extent& extent);
  void add_resident(Extent pages);
  void remove_resident(const Extent& pages);
  void trim();
  std::size_t most_kept();

  const std::size_t capacity_;
  const std::size_t page_;
  const Release release_;
  const Clock& clock_;

  mutable std::mutex mutex_;                               // guards the rest
  Pieces pieces_;                                          // in use, by their first byte
  std::map<std::size_t, std::size_t> free_;                // first byte and end
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // the same: size and first byte
  std::map<std::size_t, std::size_t> resident_;            // pages that pieces have had and the kernel has not got back
  std::size_t in_use_ = 0, peak_ = 0, resident_bytes_ = 0;
  std::size_t peak_now_ = 0, peak_before_ = 0;  // of this period and of the one before
  Nanoseconds period_began_;
};

}  // namespace dtrain::comm
