// `dtrain start-rank`, which mpirun and srun start on each host for `dtrain launch`; users do not call it. It prepares
// the process as the launcher prepares its own children, and then executes the rank's program.
#pragma once

#include <string>
#include <vector>

namespace dtrain::run {

// Binds this process to the cores of the rank's slot, sets the variables that libraries read when they are loaded, and
// executes `command`. Never returns. A ConfigError or SystemError names what this host lacks.
[[noreturn]] void start_rank(const std::vector<std::string>& command);

}  // namespace dtrain::run
