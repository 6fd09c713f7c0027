#include "rank/rank_identity.h"

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/run/version.h"
#include "dtrain/scheduler/rank_mark.h"
#include "model_file.h"

namespace dtrain::run {

void read_identity(RankIdentity& identity) {
  raise_open_files();  // rank 0 has two connections to every other rank; the profiling agent inherits the limit
  identity.environment = read_rank_environment(process_variables());
  unset_process_variable(scheduler::kRankMark);  // processes that outlive this program must not hold the slots
  unset_process_variable("DTRAIN_SECRET");       // nor be able to join the run as a rank
  identity.host = host::host_identity();
  if (identity.environment.world.host.empty()) identity.environment.world.host = identity.host.key;
}

Assignment read_assignment(const RankIdentity& identity) {
  const RankOptions& options = identity.options;
  const bool launched = identity.environment.is_launched();
  try {
    Assignment assignment{.experiment = config::read_experiment(options.experiment_file, options.overrides)};
    const config::Experiment& experiment = assignment.experiment;
    check_kind(experiment, options.for_model);
    check_model_file(experiment);
    check_mock(options.mock, identity.world().size);
    assignment.split = scheduler::split_batch(experiment.global_batch_size, identity.world().size);
    if (!launched) set_process_variables(experiment.environment_variables);  // else the launcher has set them
    return assignment;
  } catch (const ConfigError&) {
    if (identity.is_rank_0() || launched) throw;
    throw ConfigError(options.experiment_file.string() + " cannot be run; see the error of rank 0");
  }
}

Json versions_of(const RankOptions& options) {
  Json versions = options.versions.is_object() ? options.versions : Json::object();
  versions["dtrain"] = version();
  return versions;
}

}  // namespace dtrain::run
