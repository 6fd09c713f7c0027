// Opens a backend that is a library of its own, so that dtrain also runs on machines that lack what that library needs.
// Any thread.
#pragma once

#include <string>
#include <vector>

namespace dtrain::comm {

struct ModuleFile {
  std::string name;                // "dtrain_comm_mpi": lib<name>.so beside dtrain's own libraries
  std::vector<std::string> needs;  // libraries of others, opened first with RTLD_GLOBAL ("libmpi.so.40")
  std::string factory;             // the one function it exports
  std::string what;                // for errors: "the mpi backend"
  std::string remedy_needs;        // where one of `needs` is missing: "install Open MPI 4.1 (Debian: openmpi-bin)"
  std::string remedy_module;       // where the module is
};

// The address of the module's factory. It stays open for good. CommError names what cannot be opened, and why.
void* open_module(const ModuleFile& file);

}  // namespace dtrain::comm
