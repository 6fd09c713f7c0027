// From the throughput that computing alone would give to the one that was measured: what each part of the wall time
// took. The parts sum to the wall time exactly; what nothing accounts for is the part "unattributed".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct WaterfallPart {
  std::string name;         // "compute", "slower_compute", "loading", "host_to_device", …: stable
  std::string description;  // what it is, for people
  double seconds = 0;       // of the wall time, mean over ranks
  double share = 0;
};

struct Waterfall {
  double wall_s = 0;  // the loop of the slowest rank
  double samples = 0;
  double ideal_samples_per_s = 0;  // if the first part, "compute", were all
  double samples_per_s = 0;        // over the wall time
  double efficiency = 0;           // measured over ideal
  std::vector<WaterfallPart> parts;
  // Of all that: in which a rank's training thread could have run and had no core, mean over ranks. It lies across the
  // parts. Empty: not recorded.
  std::optional<double> no_core_s;
};

Json to_json(const Waterfall& waterfall);

}  // namespace dtrain::analysis
