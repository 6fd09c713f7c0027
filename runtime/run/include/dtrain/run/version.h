// The versions of the running dtrain and of the libraries on this machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dtrain::run {

// "0.1.0", as in plan.json and the dumps.
std::string version();

// Returns the lines of `dtrain version`: names ("dtrain", "libtorch", "MPI", "NCCL", "CPU"), in this order, each with
// its version. A missing library is reported and is no error. Starts mpirun for its version, which takes some 20 ms.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace dtrain::run
