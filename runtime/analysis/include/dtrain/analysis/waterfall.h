// The way from the throughput that the hardware allows to the measured one: how long each part of the wall time took.
// The parts sum to the wall time exactly; the rest that has no explanation is the part "unattributed". If the
// hardware's limits are known, the first two parts are "hardware" and "slower_kernels"; otherwise "compute" replaces
// both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct WaterfallPart {
  std::string name;         // "hardware", "slower_kernels", "slower_compute", "loading", "host_to_device", …: stable
  std::string description;  // what it is, for people
  double seconds = 0;       // of the wall time, mean over ranks
  double share = 0;
};

struct Waterfall {
  double wall_s = 0;  // the loop of the slowest rank
  double samples = 0;
  std::optional<double> hardware_samples_per_s;  // if "hardware" were the only part; empty: limits are not known
  double ideal_samples_per_s = 0;                // if computing, as fast as on the best rank, were the only part
  double samples_per_s = 0;                      // over the wall time
  double efficiency = 0;                         // measured over ideal
  std::vector<WaterfallPart> parts;

  // Seconds of a part; 0: there is none of this name. "compute" is also the sum of the two parts that replace it.
  double part_s(const std::string& name) const;
  // How long a rank's training thread could have run and had no core; mean over ranks. This time is spread over the
  // parts. Empty: not recorded.
  std::optional<double> no_core_s;
};

Json to_json(const Waterfall& waterfall);

}  // namespace dtrain::analysis
