#include "diff/turns.h"

#include <algorithm>

#include "measure/statistics.h"

namespace dtrain::analysis::diff {
namespace {

constexpr std::size_t kLeastTurns = 30;
constexpr double kMostSteps = 4;  // in a turn, against the median turn: more is a pause of the other

struct Entry {
  double start_s;
  bool of_b;
  std::size_t index;
};

// Each with the steps that one run made without the other.
std::vector<std::vector<Entry>> stretches(const Observations& a, const Observations& b) {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < a.all.size(); ++i) entries.push_back({a.all[i].start_s, false, i});
  for (std::size_t i = 0; i < b.all.size(); ++i) entries.push_back({b.all[i].start_s, true, i});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& x, const Entry& y) { return x.start_s < y.start_s; });
  std::vector<std::vector<Entry>> result;
  for (const Entry& entry : entries) {
    if (result.empty() || result.back().front().of_b != entry.of_b) result.emplace_back();
    result.back().push_back(entry);
  }
  return result;
}

}  // namespace

std::vector<Turn> find_turns(const Observations& a, const Observations& b) {
  if (!a.has_wall_clock || !b.has_wall_clock) return {};
  const auto all = stretches(a, b);
  std::vector<double> sizes;
  for (const auto& one : all) sizes.push_back(static_cast<double>(one.size()));
  const double most = kMostSteps * median_low(sizes);
  std::vector<Turn> turns;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    if (std::max(sizes[i], sizes[i + 1]) > most) continue;
    Turn& turn = turns.emplace_back();
    for (const auto& stretch : {all[i], all[i + 1]}) {
      for (const Entry& entry : stretch) (entry.of_b ? turn.b : turn.a).push_back(entry.index);
    }
  }
  return turns.size() < kLeastTurns ? std::vector<Turn>{} : turns;
}

}  // namespace dtrain::analysis::diff
