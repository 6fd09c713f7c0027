// Reads the experiment file, writes plan.json's copy of it and its schema, and explains keys of Determined that have no
// meaning here.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "document/document.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/schema.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

using DeterminedKey = std::pair<std::string_view, std::string_view>;  // path, why there is no such key here

constexpr std::string_view kForContainers =
    "one of Determined's keys for containers, which is not needed here: ranks are processes of the host; leave it out";
constexpr std::string_view kForMaster =
    "one of Determined's keys for its master, which is not needed here: dtrain has none; leave it out";
constexpr std::string_view kForSearch =
    "one of Determined's keys for hyperparameter search, which dtrain does not do; leave it out";
constexpr std::string_view kForBatchSystems =
    "one of Determined's keys for batch systems; here the cluster file says how ranks are started (launcher, "
    "docs/cluster.md); leave it out";

constexpr std::string_view kForCloudStorage =
    "one of Determined's keys for storage types that are not supported; checkpoint_storage.type says what to use "
    "instead";

constexpr std::array kDeterminedKeys{
    DeterminedKey{"bind_mounts", kForContainers},
    DeterminedKey{"environment.add_capabilities", kForContainers},
    DeterminedKey{"environment.drop_capabilities", kForContainers},
    DeterminedKey{"environment.force_pull_image", kForContainers},
    DeterminedKey{"environment.image", kForContainers},
    DeterminedKey{"environment.pod_spec", kForContainers},
    DeterminedKey{"environment.ports", kForContainers},
    DeterminedKey{"environment.proxy_ports", kForContainers},
    DeterminedKey{"environment.registry_auth", kForContainers},
    DeterminedKey{"resources.devices", kForContainers},
    DeterminedKey{"resources.shm_size", kForContainers},

    DeterminedKey{"checkpoint_storage.access_key", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.account_url", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.bucket", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.connection_string", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.container", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.credential", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.endpoint_url", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.hdfs_path", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.hdfs_url", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.prefix", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.secret_key", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.user", kForCloudStorage},
    DeterminedKey{"checkpoint_storage.checkpoint_path",
                  "an old name in Determined's files; storage_path is the folder inside host_path"},
    DeterminedKey{"checkpoint_storage.tensorboard_path",
                  "one of Determined's keys; here dtrain export --format tensorboard writes event files"},

    DeterminedKey{"data_layer", kForMaster},
    DeterminedKey{"debug", kForMaster},
    DeterminedKey{"integrations", kForMaster},
    DeterminedKey{"internal", kForMaster},
    DeterminedKey{"log_policies", kForMaster},
    DeterminedKey{"preemption_timeout", kForMaster},
    DeterminedKey{"project", kForMaster},
    DeterminedKey{"resources.agent_label",
                  "one of Determined's keys; here resources.resource_pool says which agents may be used"},
    DeterminedKey{"resources.native_parallel", kForMaster},
    DeterminedKey{"resources.slots",
                  "one of Determined's keys for tasks; here resources.slots_per_trial says how many ranks train"},
    DeterminedKey{
        "resources.weight",
        "one of Determined's keys for its fair-share scheduler; here resources.priority says who goes first; leave it "
        "out"},
    DeterminedKey{"retention_policy", kForMaster},
    DeterminedKey{"security", kForMaster},
    DeterminedKey{"tensorboard_storage",
                  "one of Determined's keys; here dtrain export --format tensorboard writes event files"},
    DeterminedKey{"workspace", kForMaster},

    DeterminedKey{"environment.pbs", kForBatchSystems},
    DeterminedKey{"environment.slurm", kForBatchSystems},
    DeterminedKey{"pbs", kForBatchSystems},
    DeterminedKey{"slurm", kForBatchSystems},

    DeterminedKey{"batches_per_step", "the old name of scheduling_unit"},
    DeterminedKey{"searcher.bracket_rungs", kForSearch},
    DeterminedKey{"searcher.budget", kForSearch},
    DeterminedKey{"searcher.divisor", kForSearch},
    DeterminedKey{"searcher.max_concurrent_trials", kForSearch},
    DeterminedKey{"searcher.max_rungs", kForSearch},
    DeterminedKey{"searcher.max_time", kForSearch},
    DeterminedKey{"searcher.max_trials", kForSearch},
    DeterminedKey{"searcher.mode", kForSearch},
    DeterminedKey{"searcher.num_rungs", kForSearch},
    DeterminedKey{"searcher.source_checkpoint_uuid",
                  "one of Determined's keys; here initial_weights names the checkpoint, run or file to start from"},
    DeterminedKey{"searcher.source_trial_id",
                  "one of Determined's keys; here initial_weights names the checkpoint, run or file to start from"},
    DeterminedKey{"searcher.stop_once", kForSearch},
    DeterminedKey{"searcher.time_metric", kForSearch},
};

// Returns a sentence about a key, such as "resources.shm_size"; empty: Determined does not have the key either.
std::string explain_determined_key(std::string_view path) {
  for (const auto& [key, why] : kDeterminedKeys) {
    if (path == key) return std::string(why);
  }
  return {};
}

std::string make_experiment_schema() {
  Experiment defaults;
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"},
              {"title", "dtrain experiment"},
              {"description", "What is trained and how. Every key has an effect or is an error."}};
  schema.update(SchemaWriter::write([&](Keys& keys) { declare_keys(keys, defaults); }));
  return schema.dump(2) + "\n";
}

}  // namespace

Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides,
                           const std::filesystem::path& contents) {
  Collector collector(file.string());
  collector.explain_with(explain_determined_key);
  Experiment experiment;
  experiment.file = file;
  experiment.name = file.stem().string();
  experiment.text = read_text(contents.empty() ? file : contents, "experiment", collector);
  const auto declare = [&](Keys& keys) { declare_keys(keys, experiment); };
  Value document = parse_document(experiment.text, collector);
  apply_overrides(overrides, document, collector, length_paths(declare));

  Section root(&document, "", document.at, collector);
  KeyReader::read_all(root, declare);
  collector.throw_if_any();
  return experiment;
}

Json to_json(const Experiment& experiment) {
  Experiment shown = experiment;
  return PlanWriter::write([&](Keys& keys) { declare_keys(keys, shown); });
}

std::string_view experiment_schema() {
  static const std::string text = make_experiment_schema();
  return text;
}

}  // namespace dtrain::config
