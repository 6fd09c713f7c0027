#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/gloo.h"
#include "dtrain/comm/hierarchical.h"
#include "hierarchical/placement.h"

namespace dtrain::comm {

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
