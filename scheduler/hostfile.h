// A hostfile as Open MPI and MPICH read it, as a cluster. Private to scheduler; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"

namespace dtrain::scheduler {

// Whether a file is a hostfile and no cluster file: by its ending (.yaml, .yml, .json are none), else by its first line
// that is not empty or a comment, which in a cluster file is a key. False where it cannot be read.
bool is_hostfile(const std::filesystem::path& file);

// "host slots=4 max-slots=8", "user@host slots=4", "host:4", "# comment". A line without a number is one slot, and
// lines with the same host add up. Its launcher is mpi. ConfigErrors, all at once.
config::Cluster read_hostfile(const std::filesystem::path& file, std::vector<std::string>& warnings);

// The text as an agent's id: what an id may not hold becomes '-'.
std::string id_of_host(const std::string& host);

}  // namespace dtrain::scheduler
