// Commands of `dtrain` that dtrain itself starts, in other processes or on other hosts; users do not call them.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::launcher {

// `dtrain start-rank`, which mpirun and srun start on each host for `dtrain launch`. It prepares the process as the
// launcher prepares its own children: binds this process to the cores of the rank's slot, sets the variables that
// libraries read when they are loaded, and executes `command`; under mpirun it stays as the rank's parent. Never
// returns. A ConfigError or SystemError names what this host lacks.
[[noreturn]] void start_rank(const std::vector<std::string>& command);

// `dtrain host-probe`, which dtrain on another host starts over a remote shell: it describes this host and measures
// connections. It reads one JSON object per line from standard input and answers each on standard output, until the
// input ends. Returns the exit code. One thread.
ExitCode host_probe();

// `dtrain cuda-probe`, which `dtrain doctor` starts: it opens libtorch_cuda, CUDA's runtime and NCCL as a rank would,
// and prints what it has found as one JSON object. `libtorch`: the folder of libtorch's libraries; may be empty. Ends
// the process, with exit code 0.
[[noreturn]] void cuda_probe(const std::string& libtorch);

}  // namespace dtrain::launcher
