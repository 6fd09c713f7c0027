// The times, the place and the number of an experiment's checkpoints (Determined's keys), and the checkpoint or file
// from which it starts. Plain values and their keys.
#pragma once

#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/keys.h"

namespace dtrain::config {

// The validations that are followed by a checkpoint.
enum class CheckpointPolicy { kBest, kAll, kNone };
inline constexpr std::array kCheckpointPolicies{Word<CheckpointPolicy>{"best", CheckpointPolicy::kBest},
                                                Word<CheckpointPolicy>{"all", CheckpointPolicy::kAll},
                                                Word<CheckpointPolicy>{"none", CheckpointPolicy::kNone}};

enum class StorageType { kRunFolder, kDirectory, kSharedFs };
inline constexpr std::array kStorageTypes{Word<StorageType>{"directory", StorageType::kDirectory},
                                          Word<StorageType>{"shared_fs", StorageType::kSharedFs}};

struct CheckpointStorage {
  std::filesystem::path folder;  // absolute; each run has a folder of its own in it; empty: in the run's folder
  int save_trial_best = 1;       // how many checkpoints stay: of the best by searcher.metric (at least
                                 // save_experiment_best) …
  int save_trial_latest = 1;     // … and of the newest; at least 1

  // The values of the keys in the file; `folder` and the numbers above follow from them.
  StorageType type = StorageType::kRunFolder;
  std::filesystem::path host_path, container_path;
  std::filesystem::path storage_path;  // in host_path
  int save_experiment_best = 0;
  bool operator==(const CheckpointStorage&) const = default;
};

extern const TextRule kFolderPath;
// A folder inside host_path, or null.
std::unique_ptr<KeyType> storage_path_form(std::filesystem::path& path);
// Docker's word for a bind mount: its default, or null.
std::unique_ptr<KeyType> propagation_form();

// Sets the fields that follow from the keys.
void resolve(Section& section, CheckpointStorage& storage);
// Returns a schema of the keys that resolve() refuses if `type` is missing.
Json storage_needs_type();

inline void declare_keys(Keys& keys, CheckpointStorage& s) {
  keys.nullable_choice(
      {.name = "type",
       .text = "Where checkpoints are kept: in a folder that every host sees (shared_fs), in a folder of this host "
               "(directory), or in the run's folder (null).",
       .more = "Every run has a folder of its own there. [More](checkpoints.md#where-they-are-kept).",
       .not_yet = "mount the storage as a folder of the host, or use another disk, and name it with type: shared_fs "
                  "and host_path"},
      s.type, kStorageTypes, {"s3", "gcs", "azure", "hdfs"});
  keys.only_with("type", kStorageTypes, s.type, {StorageType::kSharedFs}, [&](Keys& shared) {
    shared.path({.name = "host_path",
                 .text = "With type: shared_fs, the folder, under the same path on every host.",
                 .examples = R"(["/mnt/checkpoints"])",
                 .required = "the path of a folder that every host sees"},
                s.host_path, kFolderPath);
    shared.form({.name = "storage_path",
                 .text = "A folder inside host_path to use instead of host_path itself: a relative path, or an "
                         "absolute one that begins with host_path.",
                 .examples = R"(["team-a/checkpoints"])"},
                storage_path_form(s.storage_path));
    shared.form(
        {.name = "propagation",
         .text = "For files that Determined also reads: ranks are processes of the host, which need no bind mount.",
         .in_plan = false},
        propagation_form());
  });
  keys.only_with("type", kStorageTypes, s.type, {StorageType::kDirectory}, [&](Keys& directory) {
    directory.path({.name = "container_path",
                    .text = "With type: directory, the folder. dtrain has no containers: it is a path of the host.",
                    .examples = R"(["/data/checkpoints"])",
                    .required = "the path of a folder"},
                   s.container_path, kFolderPath);
  });
  const auto count = [&](const Key& key, int& value) {
    const int fallback = value;
    std::optional<int> given = value;
    keys.integer(key, given, {0, std::numeric_limits<std::int32_t>::max()});
    value = given.value_or(fallback);
  };
  count({"save_trial_best", "How many of the best checkpoints by searcher.metric are kept."}, s.save_trial_best);
  count({"save_trial_latest", "How many of the newest checkpoints are kept. The newest one always is, also with 0.",
         "Checkpoints that neither number keeps are deleted when a newer one is durable."},
        s.save_trial_latest);
  count(
      {"save_experiment_best", "As save_trial_best: a run is one trial. The larger of the two numbers has an effect."},
      s.save_experiment_best);
  keys.when_read([&](Section& section) { resolve(section, s); });
  keys.schema_rule(storage_needs_type);
}

enum class CheckpointChoice { kNewest, kBest };
// `dtrain checkpoint` calls the newest one "latest".
inline constexpr std::array kCheckpointChoices{Word<CheckpointChoice>{"newest", CheckpointChoice::kNewest},
                                               Word<CheckpointChoice>{"latest", CheckpointChoice::kNewest},
                                               Word<CheckpointChoice>{"best", CheckpointChoice::kBest}};

// `initial_weights`: the weights from which a training starts.
struct InitialWeights {
  std::filesystem::path file;  // a file, a checkpoint or a run, resolved against the file's folder; empty: none
  CheckpointChoice checkpoint = CheckpointChoice::kNewest;  // of a run
  bool strict = true;                                       // false: tensors that do not fit are left out
  bool convert_types = false;                               // floating-point values of another type are converted
  std::string strip_prefix;                                 // removed from names that begin with it
  std::vector<std::pair<std::string, std::string>> rename;  // beginnings of names, after strip_prefix: from, to
  bool training_state = false;  // of a checkpoint also the optimizer's state and the position in the data
  bool operator==(const InitialWeights&) const = default;
};

extern const TextRule kWeightsPath;
// Reports keys that have no effect on a whole training state; and the same as a rule of the schema.
void check_together(Section& section, const InitialWeights& weights);
Json training_state_is_whole();
// A mapping of beginnings of names, or null.
std::unique_ptr<KeyType> rename_form(std::vector<std::pair<std::string, std::string>>& rename);
// A path, or a mapping of a path and how to read what is there.
std::unique_ptr<KeyType> initial_weights_form(InitialWeights& weights);

inline void declare_keys(Keys& keys, InitialWeights& w) {
  keys.path({.name = "file",
             .text = "The path of the file, checkpoint or run, relative to this file's folder.",
             .examples = R"(["other/model.safetensors"])",
             .required = "the path of a .safetensors file, a checkpoint or a run"},
            w.file, kWeightsPath);
  keys.choice(
      {"checkpoint", "Which checkpoint of a run: the newest (latest is the same), or the best by searcher.metric."},
      w.checkpoint, kCheckpointChoices);
  keys.boolean(
      {"strict",
       "Whether it is an error if a tensor is missing, left over, or of another shape or type. With false, what fits "
       "is loaded, and a warning lists the rest."},
      w.strict);
  keys.boolean({"convert_types",
                "Whether floating-point values of another type than the model's are converted (bf16 to float32)."},
               w.convert_types);
  keys.text({.name = "strip_prefix",
             .text = "Removed from the names in the file that begin with it.",
             .examples = R"(["module."])"},
            w.strip_prefix);
  keys.form({.name = "rename",
             .text = "Beginnings of names in the file and what to put in their place, after strip_prefix. Of several "
                     "that a name begins with, the longest counts.",
             .examples = R"([{"encoder.": "body.", "head.": "classifier."}])"},
            rename_form(w.rename));
  keys.boolean(
      {"training_state",
       "Whether training goes on after the checkpoint's batch, with its optimizer state and its position in the "
       "data, instead of beginning at batch 0."},
      w.training_state);
  keys.when_read([&](Section& section) { check_together(section, w); });
  keys.schema_rule(training_state_is_whole);
}

}  // namespace dtrain::config
