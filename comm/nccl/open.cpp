#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "nccl/abi.h"

namespace dtrain::comm {

std::unique_ptr<NcclCommunicator> make_nccl_communicator(ControlPlane& control, const NcclOptions& nccl,
                                                         const CommunicatorOptions& options) {
  const std::string build = "build dtrain where NCCL's header is (scripts/setup.sh fetches it)";
  auto* const factory = reinterpret_cast<NcclModuleFactory*>(open_module<CommError>({.name = "dtrain_comm_nccl",
                                                                                     .needs = {},
                                                                                     .factory = kNcclModuleFactory,
                                                                                     .what = "the nccl backend",
                                                                                     .remedy_needs = {},
                                                                                     .remedy_module = build}));
  std::unique_ptr<NcclCommunicator> made;
  if (const int theirs = factory(kNcclModuleAbi, control, nccl, options, made)) {
    throw CommError("the nccl backend is of another build of dtrain: it speaks version " + std::to_string(theirs) +
                        " of the interface, this dtrain version " + std::to_string(kNcclModuleAbi),
                    "install the two together");
  }
  return made;
}

}  // namespace dtrain::comm
