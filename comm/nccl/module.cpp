// The only function that the module exports.
#include "nccl/abi.h"
#include "nccl/nccl_api.h"

extern "C" int dtrain_comm_nccl_make(int abi, dtrain::comm::ControlPlane& control,
                                     const dtrain::comm::NcclOptions& nccl,
                                     const dtrain::comm::CommunicatorOptions& options,
                                     std::unique_ptr<dtrain::comm::NcclCommunicator>& made) {
  if (abi != dtrain::comm::kNcclModuleAbi) return dtrain::comm::kNcclModuleAbi;
  made = dtrain::comm::make_nccl_communicator_with(dtrain::comm::open_nccl(), control, nccl, options);
  return 0;
}
