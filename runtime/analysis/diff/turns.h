// Whether two runs took turns: steps of each lie between steps of the other on one clock, because one job made them in
// turns or because two jobs ran at the same time. What the machine did then happened to both, so that neighbours can
// be compared with each other and only their difference is noise.
#pragma once

#include <cstddef>
#include <vector>

#include "diff/observations.h"

namespace dtrain::analysis::diff {

struct Turn {  // neighbours: indices into Observations::all
  std::vector<std::size_t> a, b;
};

// In the order of time; empty where there are too few for a test, which is so of runs that followed each other.
std::vector<Turn> find_turns(const Observations& a, const Observations& b);

}  // namespace dtrain::analysis::diff
