#include "whole_agents.h"
#include "slot_limits.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_map>

namespace dtrain::scheduler {
namespace {

// --- Tests whether there is any set, with a bit for each sum. ---

using Sums = std::bitset<kMostSlots + 1>;

bool is_sum(std::span<const SizeGroup> groups, int target) {
  Sums sums;
  sums.set(0);
  for (const SizeGroup& group : groups) {
    int left = std::min(group.count, target / group.size);
    for (int part = 1; left > 0; part *= 2) {  // any number is a sum of 1, 2, 4, … and a rest
      const int taken = std::min(part, left);
      left -= taken;
      sums |= sums << static_cast<std::size_t>(taken) * static_cast<std::size_t>(group.size);
    }
  }
  return sums[static_cast<std::size_t>(target)];
}

// --- Searches depth first, larger sizes first, for a given number of agents; nearly always ends at once. ---

class Search {
 public:
  explicit Search(std::span<const SizeGroup> groups) : groups_(groups), taken_(groups.size(), 0) {
    prefix_.push_back(0);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      first_.push_back(prefix_.size() - 1);
      place_[groups[i].size] = i;
      for (int n = 0; n < groups[i].count; ++n) prefix_.push_back(prefix_.back() + groups[i].size);
    }
  }

  std::size_t all() const { return prefix_.size() - 1; }
  std::int64_t largest(std::size_t count) const { return prefix_[count]; }
  bool gave_up() const { return left_ == 0; }

  // Returns the first set, in the wanted order, with exactly this many agents and slots. Nothing: none, or it gave up.
  std::optional<std::vector<int>> find(std::size_t count, int target) {
    if (!descend(0, count, target)) return std::nullopt;
    return taken_;
  }

 private:
  // Chooses `count` agents from the groups from `from` on.
  bool descend(std::size_t from, std::size_t count, std::int64_t slots) {
    if (count == 0) return slots == 0;
    if (count == 1) return take_one(from, slots);
    for (std::size_t i = from; i < groups_.size() && left_ > 0; ++i) {
      --left_;
      // Stops if from here on the largest agents have too few slots, as in any later group, or the smallest too many.
      if (first_[i] + count > all() || prefix_[first_[i] + count] - prefix_[first_[i]] < slots) return false;
      if (prefix_[all()] - prefix_[all() - count] > slots) return false;
      const SizeGroup& group = groups_[i];
      const auto most = std::min<std::int64_t>({group.count, static_cast<std::int64_t>(count), slots / group.size});
      for (std::int64_t number = most; number > 0 && left_ > 0; --number) {
        --left_;
        taken_[i] = static_cast<int>(number);
        if (descend(i + 1, count - static_cast<std::size_t>(number), slots - number * group.size)) return true;
      }
      taken_[i] = 0;
    }
    return false;
  }

  bool take_one(std::size_t from, std::int64_t slots) {
    if (slots > std::numeric_limits<int>::max()) return false;
    const auto place = place_.find(static_cast<int>(slots));
    if (place == place_.end() || place->second < from) return false;
    taken_[place->second] = 1;
    return true;
  }

  std::span<const SizeGroup> groups_;
  std::vector<int> taken_;
  std::vector<std::int64_t> prefix_;  // slots of the first n agents, the largest first
  std::vector<std::size_t> first_;    // index of each group's first agent
  std::unordered_map<int, std::size_t> place_;
  int left_ = 200'000;  // steps before it gives up
};

// --- Otherwise computes all sums one after the other: a bounded coin change. ---

constexpr std::size_t kCellsKept = 1 << 24;

// `Number` must hold twice the number of agents.
template <typename Number>
class AllSums {
 public:
  AllSums(std::span<const SizeGroup> groups, int target) : groups_(groups), target_(target) {}

  // Rows are made from the smallest size up, so the way back decides the largest size first. If there are too many
  // rows, about the square root of their number are kept; the others are made a second time.
  std::vector<int> find() {
    const std::size_t stages = groups_.size();
    const std::size_t cells = stages * (static_cast<std::size_t>(target_) + 1);
    const auto root = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(stages))));
    const std::size_t stride = cells <= kCellsKept ? 1 : root;
    Row row(static_cast<std::size_t>(target_) + 1, kNever);
    row[0] = 0;
    std::vector<Row> kept;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (stage % stride == 0) kept.push_back(row);
      row = with_group(std::move(row), group_of(stage));
    }

    std::vector<int> taken(stages, 0);
    int best = row.back();
    int sum = target_;
    for (std::size_t block = kept.size(); block-- > 0;) {
      const std::size_t first = block * stride;
      const std::size_t end = std::min(first + stride, stages);
      std::vector<Row> rows{std::move(kept[block])};
      for (std::size_t stage = first; stage + 1 < end; ++stage) {
        rows.push_back(with_group(rows.back(), group_of(stage)));
      }
      for (std::size_t stage = end; stage-- > first && sum > 0;) {
        const int number = most_of(group_of(stage), rows[stage - first], best, sum);
        taken[stages - 1 - stage] = number;
        sum -= number * group_of(stage).size;
        best -= number;
      }
    }
    return taken;
  }

 private:
  using Row = std::vector<Number>;  // row[s]: the fewest agents that have s slots together
  static constexpr Number kNever = std::numeric_limits<Number>::max() / 2;

  const SizeGroup& group_of(std::size_t stage) const { return groups_[groups_.size() - 1 - stage]; }

  // Returns the row after agents of another size are allowed too.
  Row with_group(Row row, const SizeGroup& group) {
    int left = std::min(group.count, target_ / group.size);
    for (int part = 1; left > 0; part *= 2) {
      const int taken = std::min(part, left);
      left -= taken;
      const int shift = taken * group.size;
      const auto agents = static_cast<Number>(taken);
      scratch_.resize(row.size());
      std::copy_n(row.begin(), shift, scratch_.begin());
      put_fewer(row.data() + shift, row.data(), agents, scratch_.data() + shift, target_ + 1 - shift);
      row.swap(scratch_);
    }
    return row;
  }

  // to[s] = the fewer of without[s] and with[s] + agents. If the length of a loop is known, GCC vectorises it at -O2
  // too, which is four times as fast.
  static void put_fewer(const Number* without, const Number* with, Number agents, Number* __restrict to, int count) {
    constexpr int kBlock = 64;
    int s = 0;
    for (; s + kBlock <= count; s += kBlock, without += kBlock, with += kBlock, to += kBlock) {
      for (int k = 0; k < kBlock; ++k) to[k] = std::min(without[k], static_cast<Number>(with[k] + agents));
    }
    for (; s < count; ++s) *to++ = std::min(*without++, static_cast<Number>(*with++ + agents));
  }

  // Returns the group's most agents in a best set of `sum` slots. `before`: row without the group; `best`: its agents.
  static int most_of(const SizeGroup& group, const Row& before, int best, int sum) {
    for (int taken = std::min(group.count, sum / group.size); taken > 0; --taken) {
      if (static_cast<int>(before[static_cast<std::size_t>(sum - taken * group.size)]) + taken == best) return taken;
    }
    return 0;
  }

  std::span<const SizeGroup> groups_;
  int target_;
  Row scratch_;
};

}  // namespace

std::optional<std::vector<int>> fewest_agents(std::span<const SizeGroup> groups, int target) {
  if (target < 1 || target > kMostSlots || !is_sum(groups, target)) return std::nullopt;
  Search search(groups);
  for (std::size_t count = 1; count <= search.all() && !search.gave_up(); ++count) {
    if (search.largest(count) < target) continue;
    if (auto found = search.find(count, target)) return found;
  }
  if (search.all() < std::numeric_limits<std::int16_t>::max()) return AllSums<std::uint16_t>(groups, target).find();
  return AllSums<std::uint32_t>(groups, target).find();
}

}  // namespace dtrain::scheduler
