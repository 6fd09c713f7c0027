// An experiment file; what is read is written as plan.json has it.
#include "dtrain/config/experiment.h"

#include "dtrain/analysis/findings.h"
#include "dtrain/config/diagnostic.h"
#include "support.h"

void dtrain::fuzz::experiment(Input input) {
  const InputFile file(input);
  try {
    const config::Experiment experiment = config::read_experiment(file.path());
    (void)to_line(config::to_json(experiment));
    (void)analysis::changed_gpu_rules(experiment.profiling_rules);
  } catch (const config::ConfigErrors&) {
  }
}
