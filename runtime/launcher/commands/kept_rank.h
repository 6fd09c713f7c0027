// The process between mpirun and a rank. mpirun kills every rank as soon as one of its children has failed, so this
// child stays after its rank has died: the others have time to report and to save what they have. The launcher hears
// how the rank has ended, and ends mpirun when all ranks have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"

namespace dtrain::launcher {

// Starts the rank's program and waits for it. A rank that has failed is told of on standard error, which mpirun passes
// on to the launcher; this process then waits to be killed, for some seconds at most. SystemError: the program cannot
// be started.
[[noreturn]] void keep_rank(const std::vector<std::string>& command, int rank);

struct EndedRank {
  int rank = -1;
  ExitStatus status;
};
// Reads such a line; empty: it is another one.
std::optional<EndedRank> read_end_of_rank(const std::string& line);

}  // namespace dtrain::launcher
