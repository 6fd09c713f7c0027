#include "dtrain/launcher/named_files.h"

#include "dtrain/base/error.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/model_file.h"
#include "dtrain/rank/weight_files.h"
#include "entrypoint.h"

namespace dtrain::run {

std::vector<std::string> find_missing_files(const config::Experiment& experiment) {
  std::vector<std::string> missing;
  const auto try_to = [&](const auto& find) {
    try {
      find();
    } catch (const ConfigError& error) {
      missing.push_back(error.what() + (error.remedy().empty() ? "" : "\n  " + error.remedy()));
    }
  };
  const auto check_file = [&](const std::string& key, const std::filesystem::path& file) {
    std::error_code code;
    if (file.empty() || (std::filesystem::exists(file, code) && !std::filesystem::is_directory(file, code))) return;
    missing.push_back(experiment.file.string() + ": " + key + ": there is no file " + file.string() +
                      "\n  a relative path is relative to the experiment file");
  };
  const auto check_source = [&](const std::string& section, const data::Source& source) {
    for (const data::SourceKey& key : data::source_keys(experiment.model->data.format)) {
      if (key.is_file) check_file(section + "." + key.name, source.at(key.name));
    }
  };
  try_to([&] { find_entrypoint(experiment, process_variables()); });
  if (experiment.model) {
    for (const config::ModelFile& file : config::files_of(*experiment.model)) {
      try_to([&] { check_model_file(experiment, file); });
    }
    check_source("data.training", experiment.model->data.training);
    if (experiment.model->data.validation) check_source("data.validation", *experiment.model->data.validation);
  }
  try_to([&] { check_checkpoint_storage(experiment.checkpoint_storage); });
  if (!experiment.initial_weights.file.empty()) {
    try_to([&] { check_initial_weights(experiment.initial_weights); });
  }
  return missing;
}

}  // namespace dtrain::run
