// The groups of keys of an experiment file; each fills its part of the experiment. Private to config.
#pragma once

#include "document/section.h"
#include "dtrain/config/experiment.h"

namespace dtrain::config {

// `model:` and what goes with it, data included; false where there is no such key.
bool read_model(Section& root, Experiment& experiment);
// What runs, and where: name, entrypoint, resources, environment.
void read_job(Section& root, Experiment& experiment);
// How gradients are exchanged.
void read_optimizations(Section section, Experiment& experiment);
// `profiling.rules`, or what --rule says of them.
void read_profiling_rules(Section section, ProfilingRules& rules);
// How it trains: hyperparameters, optimizations, searcher, periods.
void read_training(Section& root, Experiment& experiment);

}  // namespace dtrain::config
