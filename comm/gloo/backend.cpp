#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/gloo.h"
#include "gloo/abi.h"
#include "hierarchical/topology.h"

namespace dtrain::comm {
namespace {

const GlooModule& gloo_module() {
  auto* const factory = reinterpret_cast<GlooModuleFactory*>(
      open_module<CommError>({.name = kGlooModule,
                              .needs = {},
                              .factory = kGlooModuleFactory,
                              .what = "the gloo backend",
                              .remedy_needs = {},
                              .remedy_module = "it is built with dtrain's programs that train (DTRAIN_TORCH=ON), and "
                                               "needs the libtorch that those find"}));
  const GlooModule* module = nullptr;
  if (const int theirs = factory(kGlooModuleAbi, module)) {
    throw CommError("the gloo backend is of another build of dtrain: it speaks version " + std::to_string(theirs) +
                        " of the interface, this dtrain version " + std::to_string(kGlooModuleAbi),
                    "install the two together");
  }
  return *module;
}

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(ControlPlane& control, const std::vector<int>& members,
                                                     const std::string& address, const CommunicatorOptions& options) {
  return gloo_module().make_communicator(control, members, address, options);
}

std::unique_ptr<Communicator> GlooBackend::make(const BackendParts& parts) const {
  const auto over_shm = [&](ControlPlane& some, const std::vector<int>& members) {
    return ShmBackend().make({some, members, parts.mpi, parts.address, parts.options});
  };
  const auto over_gloo = [&](ControlPlane& some, const std::vector<int>& members) {
    return make_gloo_communicator(some, members, parts.address, parts.options);
  };
  const Placement placement(parts.control.gather("comm/gloo/hosts", parts.control.world().host));
  if (placement.most == 1 && placement.ranks() > 1) return over_gloo(parts.control, parts.members);
  return make_hierarchical_communicator(parts.control, over_shm, over_gloo, parts.options, kWord);
}

}  // namespace dtrain::comm
