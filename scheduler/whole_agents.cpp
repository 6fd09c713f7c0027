#include "whole_agents.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace dtrain::scheduler {
namespace {

// row[s]: the fewest agents that have s slots together.
using Row = std::vector<std::uint32_t>;
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max() / 2;

// The row once agents of another size may be used too. Any number up to `count` is a sum of 1, 2, 4, … and a rest.
Row with_group(Row row, const SizeGroup& group, Row& scratch) {
  const auto width = static_cast<int>(row.size());
  int left = std::min(group.count, (width - 1) / group.size);
  for (int part = 1; left > 0; part *= 2) {
    const int taken = std::min(part, left);
    left -= taken;
    const int shift = taken * group.size;
    const auto agents = static_cast<std::uint32_t>(taken);
    scratch = row;
    const std::uint32_t* from = row.data();
    std::uint32_t* to = scratch.data() + shift;
    for (int s = 0; s + shift < width; ++s) to[s] = std::min(to[s], from[s] + agents);
    row.swap(scratch);
  }
  return row;
}

// The most agents of the group in a best set of `sum` slots: `before` is the row without the group, `best` with it.
int most_of(const SizeGroup& group, const Row& before, std::uint32_t best, int sum) {
  for (int taken = std::min(group.count, sum / group.size); taken > 0; --taken) {
    const std::uint32_t rest = before[static_cast<std::size_t>(sum - taken * group.size)];
    if (rest + static_cast<std::uint32_t>(taken) == best) return taken;
  }
  return 0;
}

}  // namespace

// Rows are made from the smallest size up, so that the largest is the first to be decided on the way back. Only every
// sixth row, say, is kept; those between are made a second time.
std::optional<std::vector<int>> fewest_agents(std::span<const SizeGroup> groups, int target) {
  if (target < 0 || groups.empty()) return std::nullopt;
  const std::size_t stages = groups.size();
  const auto stride = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(stages))));
  const auto group_of = [&](std::size_t stage) -> const SizeGroup& { return groups[stages - 1 - stage]; };

  Row row(static_cast<std::size_t>(target) + 1, kNever);
  row[0] = 0;
  Row scratch;
  std::vector<Row> kept;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    if (stage % stride == 0) kept.push_back(row);
    row = with_group(std::move(row), group_of(stage), scratch);
  }
  if (row.back() >= kNever) return std::nullopt;

  std::vector<int> taken(stages, 0);
  std::uint32_t best = row.back();
  int sum = target;
  for (std::size_t block = kept.size(); block-- > 0;) {
    const std::size_t first = block * stride;
    const std::size_t end = std::min(first + stride, stages);
    std::vector<Row> rows{std::move(kept[block])};
    for (std::size_t stage = first; stage + 1 < end; ++stage) {
      rows.push_back(with_group(rows.back(), group_of(stage), scratch));
    }
    for (std::size_t stage = end; stage-- > first && sum > 0;) {
      const Row& before = rows[stage - first];
      const int number = most_of(group_of(stage), before, best, sum);
      taken[stages - 1 - stage] = number;
      sum -= number * group_of(stage).size;
      best -= static_cast<std::uint32_t>(number);
    }
  }
  return taken;
}

}  // namespace dtrain::scheduler
