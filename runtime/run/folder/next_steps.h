// What to do with a run that is over: three lines below its summary. Plain functions; any thread.
#pragma once

#include <string>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// How this program is called from the current folder: "dtrain" where PATH leads to it, else its path.
std::string own_command();

// What names the run on a command line: its number under ./runs, else its path from the current folder, or all of it.
std::string reference_of(const RunFolder& folder);

// Where the example of a trial is described: in the source tree or in the installed share/. Empty where there is
// neither.
std::string example_path();

// The lines. `recorded`: there is a profile of the run, which reports and analyses read.
std::string next_steps(const RunFolder& folder, bool recorded);

}  // namespace dtrain::run
