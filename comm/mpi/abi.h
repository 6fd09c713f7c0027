// The interface between the library comm and the module comm_mpi. Raise the version with every change to MpiJob,
// Communicator or the types of their members: a module of another build is then refused instead of called.
#pragma once

#include <memory>

#include "dtrain/comm/mpi.h"

namespace dtrain::comm {

inline constexpr int kMpiModuleAbi = 2;
inline constexpr const char* kMpiModule = "dtrain_comm_mpi";
inline constexpr const char* kMpiLibrary = "libmpi.so.40";  // Open MPI's
inline constexpr const char* kMpiModuleFactory = "dtrain_comm_mpi_join";

// Sets `job` and returns 0; or returns the version the module was built for.
using MpiModuleFactory = int(int abi, const MpiOptions& options, std::shared_ptr<MpiJob>& job);

}  // namespace dtrain::comm
