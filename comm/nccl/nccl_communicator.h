// Makes the communicator with a given table of functions: the libraries', or a test's.
#pragma once

#include <memory>

#include "dtrain/comm/nccl.h"
#include "nccl/nccl_api.h"

namespace dtrain::comm {

std::unique_ptr<NcclCommunicator> make_nccl_communicator_with(SharedNcclApi api, ControlPlane& control,
                                                              const NcclOptions& nccl,
                                                              const CommunicatorOptions& options);

}  // namespace dtrain::comm
