#include "dtrain/base/error.h"
#include "dtrain/base/module_file.h"
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

}  // namespace dtrain::comm
