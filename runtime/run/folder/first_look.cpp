#include "folder/first_look.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <utility>

#include "dtrain/base/units.h"
#include "folder/next_steps.h"

namespace dtrain::run {

std::string first_look_text(const analysis::LiveView& view) {
  using Share = std::pair<double, analysis::Activity>;
  std::array<Share, analysis::kActivityCount> shares;
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = {0, static_cast<analysis::Activity>(i)};
  int ranks = 0;
  for (const analysis::LiveRank& rank : view.ranks) {
    if (!rank.recent) continue;
    ++ranks;
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i].first += rank.recent->shares[i];
  }
  if (ranks == 0) return {};
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) { return a.first > b.first; });
  std::string text = "so far      " + format_rate(view.samples_per_s) + " samples/s;";
  bool first = true;
  for (const auto& [sum, activity] : shares) {
    const auto percent = std::llround(100 * sum / ranks);
    if (percent < 1) continue;
    text += (first ? " " : ", ") + std::string(analysis::name_of(activity)) + " " + std::to_string(percent) + "%";
    first = false;
  }
  return text;
}

std::string first_look(const RunFolder& folder, const Clock& clock) noexcept {
  try {
    analysis::LiveRun run(folder.path, clock);
    run.poll();
    const std::string text = first_look_text(run.view());
    return text.empty() ? text : text + "   (live: " + own_command() + " top " + reference_of(folder) + ")";
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace dtrain::run
