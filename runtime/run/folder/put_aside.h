// What an attempt at a run has left in the run's folder. Plain functions.
#pragma once

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// The number of the attempt whose files are in their usual place: from 1.
int attempt_number(const RunFolder& folder);

// Which files of an attempt stay where they are.
struct Kept {
  bool metrics = false;       // the next attempt goes on from a checkpoint, and with them
  bool launcher_log = false;  // logs/launcher.log: the launcher that writes it goes on
};

// Moves the logs, records and metrics of that attempt to attempt-N/ of the run's folder. Returns N. SystemError,
// std::filesystem::filesystem_error.
int put_aside(const RunFolder& folder, const Kept& kept);

}  // namespace dtrain::run
