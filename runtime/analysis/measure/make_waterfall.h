// How the waterfall is made: from every batch of every rank, and from how long they waited for each other.
#pragma once

#include "dtrain/analysis/waterfall.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

Waterfall make_waterfall(const Evidence& evidence);

}  // namespace dtrain::analysis
