// Opens a module: a library of dtrain with dependencies that a machine may lack. dtrain runs without it. Any thread.
#pragma once

#include <string>
#include <vector>

namespace dtrain {

struct ModuleFile {
  std::string name;                // "dtrain_comm_mpi": lib<name>.so beside a library of dtrain
  std::vector<std::string> needs;  // foreign libraries, opened first with RTLD_GLOBAL ("libmpi.so.40")
  std::string factory;             // the one function it exports
  std::string what;                // for errors: "the mpi backend"
  std::string remedy_needs;        // if one of `needs` is missing: "install Open MPI 4.1 (Debian: openmpi-bin)"
  std::string remedy_module;       // if the module is missing
};

// If `factory` is null, `why` and `remedy` describe the file that cannot be opened.
struct OpenedModule {
  void* factory = nullptr;
  std::string why;
  std::string remedy;
};
OpenedModule try_open_module(const ModuleFile& file);

// Returns the address of the module's factory. The module is never closed. The error, of a type of error.h, names the
// file that cannot be opened, and the reason.
template <class ErrorType>
void* open_module(const ModuleFile& file) {
  const OpenedModule opened = try_open_module(file);
  if (!opened.factory) throw ErrorType(opened.why, opened.remedy);
  return opened.factory;
}

}  // namespace dtrain
