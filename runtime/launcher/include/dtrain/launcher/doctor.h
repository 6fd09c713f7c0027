// `dtrain doctor`: checks whether this machine and the other hosts of a cluster have what training needs. Takes
// seconds; one thread.
#pragma once

#include <filesystem>

#include "dtrain/base/error.h"

namespace dtrain::launcher {

struct DoctorRequest {
  std::filesystem::path cluster;  // --cluster; empty: looked for
  std::filesystem::path runs;     // for runs; empty: ./runs
  bool json = false;
  bool bench = false;  // measure the limits of this machine, whether or not they are known
};

// Prints the findings. Returns the exit code: 0, or 1 if there is a problem.
ExitCode doctor(const DoctorRequest& request);

// Returns the lines of `dtrain version`: names ("dtrain", "libtorch", "MPI", "NCCL", "CPU"), in this order, each with
// its version. A missing library is reported and is no error. Starts mpirun for its version, which takes some 20 ms.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace dtrain::launcher
