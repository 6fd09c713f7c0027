// What an experiment file may say and this version does not do yet. Any thread may call.
#pragma once

#include "dtrain/config/experiment.h"

namespace dtrain::run {

// ConfigError naming the first such setting: none is read and ignored.
void refuse_what_is_not_built(const config::Experiment& experiment);

}  // namespace dtrain::run
