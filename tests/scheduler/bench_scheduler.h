// The halves of bench_scheduler. Each measures one part of the scheduler and returns its figures, named with their
// units.
#pragma once

#include "dtrain/base/json.h"

namespace dtrain::scheduler {

Json measure_placement();
Json measure_task_list();

}  // namespace dtrain::scheduler
