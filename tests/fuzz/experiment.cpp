// An experiment file; what is read is written as plan.json has it.
#include "dtrain/config/experiment.h"

#include "dtrain/config/diagnostic.h"
#include "support.h"

void dtrain::fuzz::experiment(Input input) {
  const InputFile file(input);
  try {
    (void)to_line(config::to_json(config::read_experiment(file.path())));
  } catch (const config::ConfigErrors&) {
  }
}
