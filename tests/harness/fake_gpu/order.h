// Which accesses to memory are ordered, and which race?
//
// Every operation of a stream has a number. A clock says, for each stream, up to which number operations have ended as
// far as its owner (a stream, an event, the host) knows. An operation may touch what an earlier one touched if its
// stream's clock covers the earlier one, or if both only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace dtrain::test::fake_gpu {

using Clock = std::vector<std::uint64_t>;  // by the stream's index; what is beyond its end is 0

void merge(Clock& into, const Clock& from);
bool covers(const Clock& clock, const Clock& other);

struct Access {
  std::size_t stream = 0;
  std::uint64_t number = 0;
  std::string_view what;  // the operator
};

bool covers(const Clock& clock, const Access& access);

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// An earlier access that is not known to have ended.
struct Conflict {
  Access earlier;
  bool wrote = false;
};

// The last write and the reads since then, for each byte.
class Shadow {
 public:
  // Notes an access and returns what it conflicts with, each operator of a stream once.
  std::vector<Conflict> touch(Range range, bool writes, const Access& now, const Clock& known);
  // What still uses the range, as far as `known` says.
  std::vector<Conflict> uses(Range range, const Clock& known) const;
  // The operations that `ended` covers have ended, without any stream being ordered behind them.
  void forget(Range range, const Clock& ended);
  void forget(Range range);
  // What wrote this byte last.
  std::optional<Access> last_write(std::uintptr_t address) const;

 private:
  struct Cell {
    std::uintptr_t end = 0;
    std::optional<Access> write;
    std::vector<Access> reads;  // one for each stream
  };

  void split(std::uintptr_t at);
  static void check(const Cell& cell, bool reads_too, const Clock& known, std::vector<Conflict>& conflicts);

  std::map<std::uintptr_t, Cell> cells_;  // by where they begin
};

}  // namespace dtrain::test::fake_gpu
