#include <dlfcn.h>

#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/mpi.h"
#include "mpi/abi.h"

namespace dtrain::comm {

std::shared_ptr<MpiJob> MpiJob::join(const MpiOptions& options) {
  const std::string build = "build dtrain where Open MPI's headers are (Debian: libopenmpi-dev)";
  auto* const factory = reinterpret_cast<MpiModuleFactory*>(
      open_module<CommError>({.name = kMpiModule,
                              .needs = {kMpiLibrary},
                              .factory = kMpiModuleFactory,
                              .what = "the mpi backend",
                              .remedy_needs = "install Open MPI 4.1 (Debian: openmpi-bin)",
                              .remedy_module = build}));
  std::shared_ptr<MpiJob> job;
  if (const int theirs = factory(kMpiModuleAbi, options, job)) {
    throw CommError("the mpi backend is of another build of dtrain: it speaks version " + std::to_string(theirs) +
                        " of the interface, this dtrain version " + std::to_string(kMpiModuleAbi),
                    "install the two together");
  }
  return job;
}

std::unique_ptr<Communicator> MpiBackend::make(const BackendParts& parts) const {
  return parts.mpi->make_communicator(parts.control, parts.members, parts.options);
}

BackendCheck MpiBackend::check(const std::map<std::string, std::string>& variables) const {
  static const char inside_this_library = 0;
  BackendCheck check;
  check.name = "MPI";
  check.used_by = "runs over several hosts";
  const auto lacking = [&](const std::string& text, const std::string& remedy) {
    check.text = text;
    check.remedy = remedy;
    return check;
  };
  const std::string install = "install Open MPI 4.1 (Debian: openmpi-bin)";
  const auto path = variables.find("PATH");
  const std::filesystem::path mpirun = find_in_path("mpirun", path == variables.end() ? nullptr : &path->second);
  if (mpirun.empty()) return lacking("there is no mpirun in PATH", install);
  const std::string said = first_output_line({mpirun.string(), "--version"});
  if (said.find("Open MPI") == std::string::npos) {
    return lacking(mpirun.string() + " is not Open MPI's: " + (said.empty() ? "it prints nothing" : said), install);
  }
  if (!std::filesystem::exists(library_folder(&inside_this_library) / ("lib" + std::string(kMpiModule) + ".so"))) {
    return lacking(said + ", but dtrain was built without it", "build dtrain where its headers are (libopenmpi-dev)");
  }
  void* const library = ::dlopen(kMpiLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return lacking(said + ", but its library " + kMpiLibrary + " is not found", install);
  ::dlclose(library);
  check.usable = true;
  check.text = said;
  return check;
}

}  // namespace dtrain::comm
