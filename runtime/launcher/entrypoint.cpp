#include "entrypoint.h"

#include <unistd.h>

#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"

namespace dtrain::launcher {

namespace fs = std::filesystem;

namespace {

// "train.py" and "MyTrial" of "train.py:MyTrial".
struct PythonEntry {
  std::string file;
  std::string trial;  // the class; empty: the script itself
};

std::optional<PythonEntry> python_entry(const std::string& word) {
  if (word.ends_with(".py")) return PythonEntry{word, ""};
  const auto colon = word.rfind(':');
  if (colon == std::string::npos || !word.substr(0, colon).ends_with(".py")) return std::nullopt;
  return PythonEntry{word.substr(0, colon), word.substr(colon + 1)};
}

fs::path in_folder_of(const config::Experiment& experiment, const std::string& name) {
  return (fs::absolute(experiment.file).parent_path() / name).lexically_normal();
}

fs::path python_of(const config::Experiment& experiment, const PythonEntry& entry, const rank::Variables& variables) {
  const std::string where = experiment.file.string() + ": entrypoint: ";
  std::error_code code;
  if (const fs::path script = in_folder_of(experiment, entry.file); !fs::is_regular_file(script, code)) {
    throw ConfigError(where + "there is no Python file " + script.string(),
                      "its path is relative to the experiment file");
  }
  return find_python(variables, where + entry.file);
}

bool mentions(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

// True if the script imports a module from its own folder that mentions dtrain.
bool imports_one_that_mentions_it(const fs::path& script, const std::string& text) {
  const fs::path folder = script.has_parent_path() ? script.parent_path() : fs::path(".");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path& file = entry.path();
    if (file.extension() != ".py" || file.filename() == script.filename()) continue;
    const std::string module = file.stem().string();
    const bool is_imported = mentions(text, "import " + module) || mentions(text, "from " + module);
    if (is_imported && mentions(read_file(file), "dtrain")) return true;
  }
  return false;
}

}  // namespace

fs::path find_python(const rank::Variables& variables, const std::string& who) {
  const auto value_of = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  if (const std::string given = value_of("DTRAIN_PYTHON"); !given.empty()) {
    if (::access(given.c_str(), X_OK) == 0) return given;
    throw ConfigError("DTRAIN_PYTHON is " + given + ", which cannot be executed", "give the path of a Python");
  }
  if (const std::string environment = value_of("VIRTUAL_ENV"); !environment.empty()) {
    if (fs::path python = fs::path(environment) / "bin" / "python"; ::access(python.c_str(), X_OK) == 0) {
      return python;
    }
  }
  fs::path found = rank::find_program("python3", {}, variables);
  if (found.empty()) throw ConfigError(who + " needs python3, which is not in PATH");
  return found;
}

bool runs_script(const std::vector<std::string>& command) {
  return command.size() > 3 && command[2] == kPythonRank && command[3].ends_with(".py");
}

std::string script_warning(const std::vector<std::string>& command) {
  if (!runs_script(command)) return {};
  try {
    const std::string text = read_file(command[3]);
    if (mentions(text, "dtrain") || imports_one_that_mentions_it(command[3], text)) return {};
  } catch (const std::exception&) {
    return {};  // Python will say why
  }
  return command[3] +
         " does not mention dtrain: unless another module that it imports calls dtrain.init(), each rank trains by "
         "itself on "
         "all of the data, and the run fails at the end\n  " +
         kCallsOfScript;
}

std::vector<std::string> entry_command(const config::Experiment& experiment, const rank::Variables& variables) {
  std::vector<std::string> command{find_entrypoint(experiment, variables).string()};
  const auto entry = python_entry(experiment.entrypoint.front());
  if (entry) {
    const std::string script = in_folder_of(experiment, entry->file).string();
    const char* const module = experiment.as_is == config::AsIs::kOff ? kPythonRank : kPythonAsIs;
    command.insert(command.end(), {"-m", module, script + (entry->trial.empty() ? "" : ":" + entry->trial)});
  }
  command.insert(command.end(), experiment.entrypoint.begin() + 1, experiment.entrypoint.end());
  if (entry) command.emplace_back("--");
  return command;
}

fs::path find_entrypoint(const config::Experiment& experiment, const rank::Variables& variables) {
  const std::string& name = experiment.entrypoint.front();
  if (const auto entry = python_entry(name)) return python_of(experiment, *entry, variables);
  const fs::path beside = executable_path().parent_path();
  const std::string where = experiment.file.string() + ": entrypoint: ";
  if (name.find('/') == std::string::npos) {
    fs::path found =
        experiment.model ? rank::find_training_program(name, variables) : rank::find_program(name, beside, variables);
    if (!found.empty()) return found;
    if (experiment.model) {
      throw ConfigError(experiment.file.string() + ": model: `model:` experiments are carried out by the program " +
                            name + ", which is neither in " + beside.string() + " nor in PATH",
                        rank::missing_program(name).remedy);
    }
    if (name.find(':') != std::string::npos) {
      throw ConfigError(where + "'" + name + "' is no program; a Python class is named with its file: train.py:MyTrial",
                        "name the file, or a program of your own (docs/python.md)");
    }
    std::vector<std::string> names;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(beside, code)) names.push_back(entry.path().filename());
    const auto near = nearest(name, names);
    throw ConfigError(where + "there is no program '" + name + "' in " + beside.string() + " or in PATH" +
                          (near ? "; did you mean " + *near + "?" : ""),
                      "build it there, or write its path (./" + name + " is beside the experiment file)");
  }
  const fs::path path = fs::absolute(experiment.file).parent_path() / name;
  std::error_code code;
  if (!fs::is_regular_file(path, code)) {
    throw ConfigError(where + "there is no program " + path.lexically_normal().string(),
                      "a path with a slash is relative to the experiment file");
  }
  if (::access(path.c_str(), X_OK) != 0) {
    throw ConfigError(where + path.lexically_normal().string() + " is not executable", "chmod +x it");
  }
  // A link stays a link: the Python of a virtual environment finds its packages by the path that it is started by.
  return fs::canonical(path.parent_path()) / path.filename();
}

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
  try_to([&] { find_entrypoint(experiment, rank::process_variables()); });
  if (experiment.model) {
    for (const config::ModelFile& file : config::files_of(*experiment.model)) {
      try_to([&] { rank::check_model_file(experiment, file); });
    }
    check_source("data.training", experiment.model->data.training);
    if (experiment.model->data.validation) check_source("data.validation", *experiment.model->data.validation);
  }
  try_to([&] { rank::check_checkpoint_storage(experiment.checkpoint_storage); });
  if (!experiment.initial_weights.file.empty()) {
    try_to([&] { rank::check_initial_weights(experiment.initial_weights); });
  }
  return missing;
}

}  // namespace dtrain::launcher
