#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/hierarchical.h"

namespace dtrain::comm {

std::unique_ptr<Communicator> HierarchicalBackend::make(const BackendParts& parts) const {
  const auto over_shm = [&](ControlPlane& some, const std::vector<int>& members) {
    return ShmBackend().make({some, members, parts.mpi, parts.address, parts.options});
  };
  const auto over_mpi = [&](ControlPlane& some, const std::vector<int>& members) {
    return MpiBackend().make({some, members, parts.mpi, parts.address, parts.options});
  };
  return make_hierarchical_communicator(parts.control, over_shm, over_mpi, parts.options);
}

}  // namespace dtrain::comm
