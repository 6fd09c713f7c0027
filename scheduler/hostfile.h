// Reads a hostfile of Open MPI or MPICH as a cluster. Private to scheduler; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"

namespace dtrain::scheduler {

// True if a file is a hostfile, not a cluster file. A hostfile does not end in .yaml, .yml or .json, and its first line
// that is not empty or a comment is no key, as in a cluster file. False if the file cannot be read.
bool is_hostfile(const std::filesystem::path& file);

// Reads lines such as "host slots=4 max-slots=8", "user@host slots=4", "host:4", "# comment". A line without a number
// is one slot, and lines with the same host add up. The launcher is mpi. Reports all ConfigErrors at once.
config::Cluster read_hostfile(const std::filesystem::path& file, std::vector<std::string>& warnings);

// Returns the text as an agent's id: characters that an id may not hold become '-'.
std::string id_of_host(const std::string& host);

}  // namespace dtrain::scheduler
