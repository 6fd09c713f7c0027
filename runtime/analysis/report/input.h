// The input of all sections: the run, its analysis, and one time axis for all charts. Any thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis::report {

// Limits of drawing, so that a long run on many ranks still makes a small file.
inline constexpr std::size_t kMostRanks = 64;       // with a row or a line of their own
inline constexpr std::size_t kMostCells = 100'000;  // shares in the timeline
inline constexpr std::size_t kMostPoints = 40'000;  // values in a chart of lines
inline constexpr std::size_t kMostColumns = 400;    // along any time axis: more cannot be seen
inline constexpr std::size_t kMostOutliers = 100;   // rows

class Input {
 public:
  Input(const RunProfile& profile, const Analysis& known);

  const RunProfile& run;
  const Analysis& analysis;

  // Seconds since the first rank's process started, on rank 0's clock.
  double seconds(const RankProfile& rank, std::int64_t monotonic_ns) const;
  double seconds(const AgentProfile& agent, std::int64_t monotonic_ns) const;
  double end_s() const { return end_s_; }  // of the last thing recorded

  // Returns the ranks that are drawn one by one, ascending: all, or if they are too many those for which others waited
  // most.
  const std::vector<const RankProfile*>& drawn() const { return drawn_; }
  // Returns the note for charts that do not draw all ranks; otherwise empty.
  std::string drawn_text() const;

  // Returns the number of columns of a chart of `lines` lines with at most `budget` values.
  static std::size_t columns(std::size_t lines, std::size_t budget);

 private:
  std::int64_t zero_ns_ = 0;  // rank 0's clock
  double end_s_ = 0;
  std::vector<const RankProfile*> drawn_;
};

// Phases that are drawn as one.
struct PhaseGroup {
  const char* name;
  const char* color;  // of report.css
  std::vector<profile::Phase> phases;
};
const std::vector<PhaseGroup>& phase_groups();
std::int64_t group_ns(const profile::PhaseTimes& times, const PhaseGroup& group);

// Rounds for the page: more decimals than a pixel shows would be useless bytes.
double rounded(double value, int digits = 4);
Json rounded(const std::vector<double>& values, int digits = 4);

// Returns the display name of an agent's host.
inline std::string host_name(const AgentProfile& agent) {
  return agent.host.empty() ? agent.agent : agent.host;
}

}  // namespace dtrain::analysis::report
