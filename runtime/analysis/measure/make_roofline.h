// How the roofline is made: from the operators that ranks counted and the limits of their hosts.
#pragma once

#include "dtrain/analysis/roofline.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

Roofline make_roofline(const RunProfile& run);

}  // namespace dtrain::analysis
