// `dtrain doctor`: whether this machine, and the other hosts of a cluster, have what training needs. It takes seconds;
// one thread.
#pragma once

#include <filesystem>

namespace dtrain::run {

struct DoctorRequest {
  std::filesystem::path cluster;  // --cluster; empty: found
  std::filesystem::path runs;     // where runs are written; empty: ./runs
  bool json = false;
};

// Prints what it finds. The exit code: 0, or 1 where something is a problem.
int doctor(const DoctorRequest& request);

}  // namespace dtrain::run
