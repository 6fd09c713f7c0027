#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"

namespace dtrain::comm {

std::unique_ptr<Communicator> ShmBackend::make(const BackendParts& parts) const {
  return make_shm_communicator(parts.control, parts.options, parts.members);
}

}  // namespace dtrain::comm
