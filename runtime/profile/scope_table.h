// The scopes of a rank: the open ones, and the times of those in the current step. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/profile/records.h"
#include "ring.h"

namespace dtrain::profile {

class ScopeTable {
 public:
  // Returns the number of the path of a scope with this name within the innermost open one. Error if the name has other
  // characters than letters, digits, '_', '-' and '.', if the path would be too long, or if there are too many paths.
  std::size_t find(std::string_view name);

  // Opens the scope of that path and returns a number for is_open(). `before`: the time in each phase of the step so
  // far. A scope without times is open only so that others can be within it.
  std::uint64_t open(std::size_t path, std::int64_t now_ns, const PhaseTimes& before);
  std::uint64_t open_untimed(std::size_t path);
  bool is_open(std::uint64_t scope) const;
  bool any_open() const { return !open_.empty(); }
  // True if the innermost open scope has times.
  bool is_timed() const { return !open_.empty() && open_.back().is_timed; }

  struct Ended {
    std::string_view path;
    std::int64_t start_ns = 0;
    bool is_timed = false;
  };
  // Ends the innermost open scope. `after`: as `before` above, now.
  Ended end_innermost(const PhaseTimes& after);

  // Passes on the times of scopes that have ended since clear(), in the order in which they first ended.
  template <typename Use>
  void each(const Use& use) const {
    for (const std::size_t path : used_) use(payload_of(paths_[path]));
  }
  // Discards these times and the open scopes.
  void clear();

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Path {
    std::size_t parent = kNone;
    std::string name, whole;
    std::int64_t calls = 0;
    PhaseTimes times{};
  };
  struct Open {
    std::uint64_t number = 0;
    std::size_t path = kNone;
    bool is_timed = false;
    std::int64_t start_ns = 0;
    PhaseTimes before{};
  };
  std::size_t add(std::size_t parent, std::string_view name);
  static ScopeRecord payload_of(const Path& path);

  std::vector<Path> paths_;
  std::vector<Open> open_;  // the innermost is the last
  std::vector<std::size_t> used_;
  std::uint64_t opened_ = 0;
};

}  // namespace dtrain::profile
