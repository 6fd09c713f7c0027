// Finds the program that carries out an experiment.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/experiment.h"
#include "dtrain/rank/environment.h"

namespace dtrain::launcher {

// The module of Python that runs a script, or a class in a script, as a rank.
inline constexpr const char* kPythonRank = "dtrain.rank";
// The module that runs a script unchanged (config::AsIs).
inline constexpr const char* kPythonAsIs = "dtrain.as_is";

// A name without a slash: looked for beside the running dtrain, then in PATH. Other paths: relative to the experiment
// file. ConfigError if there is no such program or it cannot be executed.
//
// A Python file (train.py), or a class in one (train.py:MyTrial), is relative to the experiment file's folder, with or
// without a slash. Its program is Python: $DTRAIN_PYTHON, that of $VIRTUAL_ENV, or python3 in PATH.
std::filesystem::path find_entrypoint(const config::Experiment& experiment, const rank::Variables& variables);

// Returns $DTRAIN_PYTHON, that of $VIRTUAL_ENV, or python3 in PATH. ConfigError: there is none; `who` needs it.
std::filesystem::path find_python(const rank::Variables& variables, const std::string& who);

// True if a rank's command runs a Python script, whose loop is its own; false: a class in a script, or another program.
bool runs_script(const std::vector<std::string>& command);
// Returns a warning if such a script does not mention dtrain: unless a module that it imports calls dtrain.init(), each
// rank would train alone. Empty: the script or a module beside it mentions dtrain, or cannot be read.
std::string script_warning(const std::vector<std::string>& command);
// The calls that make a script a rank; a remedy for people.
inline constexpr const char* kCallsOfScript =
    "a script begins with session = dtrain.init(), and trains what session.wrap(model, optimizer, loader) returns "
    "(docs/python.md); Lightning's Trainer takes strategy=dtrain.lightning.Strategy()";

// Returns the program and its arguments. The launcher adds the experiment file and options after them.
std::vector<std::string> entry_command(const config::Experiment& experiment, const rank::Variables& variables);

}  // namespace dtrain::launcher
