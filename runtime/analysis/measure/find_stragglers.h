// How the table of stragglers is made.
#pragma once

#include "dtrain/analysis/stragglers.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

Stragglers find_stragglers(const Evidence& evidence);

}  // namespace dtrain::analysis
