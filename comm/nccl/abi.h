// The interface between the library comm and the module comm_nccl. Raise the version with every change to
// NcclCommunicator, Communicator or their members' types: a module of another build is then refused, not called.
#pragma once

#include <memory>

#include "dtrain/comm/nccl.h"

namespace dtrain::comm {

inline constexpr int kNcclModuleAbi = 3;
inline constexpr const char* kNcclModuleFactory = "dtrain_comm_nccl_make";

// Sets `made` and returns 0; or returns the version the module was built for.
using NcclModuleFactory = int(int abi, ControlPlane& control, const NcclOptions& nccl,
                              const CommunicatorOptions& options, std::unique_ptr<NcclCommunicator>& made);

}  // namespace dtrain::comm
