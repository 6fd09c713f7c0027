#include "order.h"

#include <algorithm>
#include <utility>

namespace dtrain::test::fake_gpu {

void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool covers(const Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i) {
    if (other[i] > (i < clock.size() ? clock[i] : 0)) return false;
  }
  return true;
}

bool covers(const Clock& clock, const Access& access) {
  return access.number <= (access.stream < clock.size() ? clock[access.stream] : 0);
}

void Shadow::split(std::uintptr_t at) {
  auto cell = cells_.upper_bound(at);
  if (cell == cells_.begin()) return;
  --cell;
  if (cell->first == at || cell->second.end <= at) return;
  Cell right = cell->second;
  cell->second.end = at;
  cells_.emplace(at, std::move(right));
}

void Shadow::check(const Cell& cell, bool reads_too, const Clock& known, std::vector<Conflict>& conflicts) {
  const auto add = [&](const Access& earlier, bool wrote) {
    if (covers(known, earlier)) return;
    const bool listed = std::any_of(conflicts.begin(), conflicts.end(), [&](const Conflict& c) {
      return c.wrote == wrote && c.earlier.stream == earlier.stream && c.earlier.what == earlier.what;
    });
    if (!listed) conflicts.push_back({earlier, wrote});
  };
  if (cell.write) add(*cell.write, true);
  if (!reads_too) return;
  for (const Access& read : cell.reads) add(read, false);
}

std::vector<Conflict> Shadow::touch(Range range, bool writes, const Access& now, const Clock& known) {
  std::vector<Conflict> conflicts;
  if (range.begin >= range.end) return conflicts;
  split(range.begin);
  split(range.end);
  auto at = range.begin;
  for (auto cell = cells_.lower_bound(at); at < range.end; at = cell->second.end, ++cell) {
    if (cell == cells_.end() || cell->first > at) {  // a gap that nothing has touched yet
      const auto end = cell == cells_.end() ? range.end : std::min(range.end, cell->first);
      cell = cells_.emplace_hint(cell, at, Cell{end, {}, {}});
    }
    check(cell->second, writes, known, conflicts);
    if (writes) continue;
    auto& reads = cell->second.reads;
    std::erase_if(reads, [&](const Access& read) { return read.stream == now.stream; });
    reads.push_back(now);
  }
  if (writes) {  // all of it is alike now
    forget(range);
    cells_.emplace(range.begin, Cell{range.end, now, {}});
  }
  return conflicts;
}

std::vector<Conflict> Shadow::uses(Range range, const Clock& known) const {
  std::vector<Conflict> conflicts;
  for (auto cell = cells_.lower_bound(range.begin); cell != cells_.end() && cell->first < range.end; ++cell) {
    check(cell->second, true, known, conflicts);
  }
  return conflicts;
}

void Shadow::forget(Range range, const Clock& ended) {
  for (auto cell = cells_.lower_bound(range.begin); cell != cells_.end() && cell->first < range.end; ++cell) {
    auto& [end, write, reads] = cell->second;
    if (write && covers(ended, *write)) write.reset();
    std::erase_if(reads, [&](const Access& read) { return covers(ended, read); });
  }
}

void Shadow::forget(Range range) {
  split(range.begin);
  split(range.end);
  cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
}

std::optional<Access> Shadow::last_write(std::uintptr_t address) const {
  auto cell = cells_.upper_bound(address);
  if (cell == cells_.begin()) return std::nullopt;
  --cell;
  return address < cell->second.end ? cell->second.write : std::nullopt;
}

}  // namespace dtrain::test::fake_gpu
