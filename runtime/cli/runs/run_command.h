// The parts that the commands with a RUN argument have in common.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dtrain/analysis/run_line.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {

// Adds the argument RUN, for run::find_run().
CLI::Option* add_run(CLI::App& command, std::string& run);
// Adds the same argument for one run or more.
CLI::Option* add_runs(CLI::App& command, std::vector<std::string>& runs);
CLI::Option* add_json(CLI::App& command, bool& json);

// Agents write twice a second: a run that was quiet for so long, and has no process on this host, has none on any.
inline constexpr double kQuietS = 5;

// Returns the run as it is now.
analysis::ListedRun list_run(const run::RunFolder& folder, const Clock& clock);

// Prints the answer as JSON or as text; the other form is not made.
void print_answer(bool json, const std::function<Json()>& for_programs, const std::function<std::string()>& for_people);

}  // namespace dtrain::cli
