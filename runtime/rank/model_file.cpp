#include "dtrain/rank/model_file.h"

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"

namespace dtrain::run {

namespace fs = std::filesystem;

void check_model_files(const config::Experiment& experiment) {
  if (!experiment.model) return;
  for (const config::ModelFile& file : config::files_of(*experiment.model)) check_model_file(experiment, file);
}

void check_model_file(const config::Experiment& experiment, const config::ModelFile& model_file) {
  const fs::path& file = model_file.path;
  const std::string where = experiment.file.string() + ": " + model_file.key + ": ";
  std::error_code code;
  if (fs::is_regular_file(file, code)) return;
  if (fs::exists(file, code)) throw ConfigError(where + file.string() + " is no file", "name the model's file");
  const std::string name = "\"" + file.filename().string() + "\")";
  throw ConfigError(where + "there is no file " + file.string(),
                    "write it from Python with " +
                        (file.extension() == ".pt2" ? "torch.export.save(torch.export.export(model, inputs), " + name
                                                    : "torch.jit.script(model).save(" + name) +
                        "; a relative path is relative to the experiment file");
}

void check_kind(const config::Experiment& experiment, bool for_model) {
  if (for_model && !experiment.model) {
    throw ConfigError(experiment.file.string() + " has no `model:`, and dtrain-worker carries out no other experiments",
                      "dtrain launch starts the program that its entrypoint names");
  }
  if (!for_model && experiment.model) {
    throw ConfigError(experiment.file.string() + " has a `model:`, which only dtrain-worker carries out",
                      "start it with dtrain launch, or start dtrain-worker instead of this program");
  }
}

}  // namespace dtrain::run
