// Checks standard output: a command whose answer could not be written has failed, even if it succeeded otherwise.
// Needs no CLI11. One thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::cli {

// At the end of main(): writes buffered output and returns the exit code. If some output could not be written (a full
// disk), reports this on standard error and turns success into kRunFailed. A reader that has gone away (`dtrain task
// list | head -1`) is no error.
ExitCode finish_output(ExitCode exit_code);

// For a command whose result is not what it prints: only warns of lost output, and leaves the exit code as it is.
void warn_of_lost_output();

}  // namespace dtrain::cli
