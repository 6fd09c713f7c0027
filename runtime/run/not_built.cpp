#include "not_built.h"

#include "dtrain/base/error.h"

namespace dtrain::run {

void refuse_what_is_not_built(const config::Experiment& experiment) {
  if (!(experiment.profiling_rules == config::ProfilingRules{})) {
    throw ConfigError(experiment.file.string() + ": profiling.rules: no rule judges a run in this version yet",
                      "remove it; what the rules' parameters will be is checked already (dtrain config check)");
  }
}

}  // namespace dtrain::run
