// What mpirun and srun start on each host for `dtrain launch` (`dtrain start-rank`, not for people): it prepares a
// rank's process as the launcher does where it starts ranks itself, and becomes the rank's program.
#pragma once

#include <string>
#include <vector>

namespace dtrain::run {

// Binds this process to the cores of the rank's slot, sets what libraries read as they are loaded, and executes
// `command`. Returns never; ConfigError or SystemError says what this host lacks.
[[noreturn]] void start_rank(const std::vector<std::string>& command);

}  // namespace dtrain::run
