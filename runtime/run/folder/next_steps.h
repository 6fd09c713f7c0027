// What to do with a run that is over: three lines below its summary. Plain functions; any thread.
#pragma once

#include <string>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// How to call this program from the current folder: "dtrain" if PATH leads to it, else its path.
std::string own_command();

// How to name the run on a command line: its number under ./runs, else its path, relative if it is below the current
// folder.
std::string reference_of(const RunFolder& folder);

// The description of the example trial, in the source tree or in the installed share/. Empty if there is neither.
std::string example_path();

// The lines. `recorded`: the run has a profile, which reports and analyses read.
std::string next_steps(const RunFolder& folder, bool recorded);

}  // namespace dtrain::run
