// The weights from which a training starts: `initial_weights`. Plain values and their keys.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class CheckpointChoice { kNewest, kBest };
// `dtrain checkpoint` calls the newest one "latest".
inline constexpr std::array kCheckpointChoices{Word<CheckpointChoice>{"newest", CheckpointChoice::kNewest},
                                               Word<CheckpointChoice>{"latest", CheckpointChoice::kNewest},
                                               Word<CheckpointChoice>{"best", CheckpointChoice::kBest}};

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
