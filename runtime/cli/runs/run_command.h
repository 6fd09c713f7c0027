// What the commands that take a RUN have in common.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "dtrain/base/json.h"

namespace dtrain::cli {

// The argument RUN, for run::find_run().
CLI::Option* add_run(CLI::App& command, std::string& run);
CLI::Option* add_json(CLI::App& command, bool& json);

// Prints the answer as JSON or as text; the other form is not made.
void print_answer(bool json, const std::function<Json()>& for_programs, const std::function<std::string()>& for_people);

}  // namespace dtrain::cli
