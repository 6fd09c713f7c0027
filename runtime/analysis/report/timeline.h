// The chart of what each rank did when. Any thread may call.
#pragma once

#include "dtrain/base/json.h"
#include "report/input.h"

namespace dtrain::analysis::report {

// The spec of assets/50-timeline.js; null where no step was recorded.
Json timeline_spec(const Input& input);

}  // namespace dtrain::analysis::report
