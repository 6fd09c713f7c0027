// Which communicators does the process have, and what may be asked of each?
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nccl_communicator.h"

namespace dtrain::test::fake_gpu {

// The caller holds the machine's mutex. Functions return NCCL's codes; wrong use is reported.
class Communicators {
 public:
  // Nullptr, and a report, where it must not be used: it is gone, or revoked and not `while_revoked`.
  NcclRank* find(ncclComm_t comm, const char* what, bool while_revoked = false);

  ncclResult_t connect(ncclComm_t* made, const std::string& name, int ranks, int rank, const ncclConfig_t* config);
  ncclResult_t state(ncclComm_t comm, ncclResult_t* state);
  ncclResult_t finalize(ncclComm_t comm);
  ncclResult_t destroy(ncclComm_t comm);
  ncclResult_t abort(ncclComm_t comm);
  ncclResult_t revoke(ncclComm_t comm);
  ncclResult_t shrink(ncclComm_t comm, const std::vector<int>& excluded, ncclComm_t* made, const ncclConfig_t* config,
                      int flags);
  // What ncclGetLastError() says. It stays valid until the thread or the communicator has another error.
  const char* last_error(ncclComm_t comm);

  // A call that fails: ncclGetLastError() says why, and if the program is wrong a report does.
  ncclResult_t refuse(ncclResult_t result, const std::string& text, bool wrong = true);

 private:
  static bool busy(const NcclRank& rank);
  ncclResult_t state_of(NcclRank& rank);
  void let_go(NcclRank& rank);

  std::map<ncclComm_t, std::unique_ptr<NcclRank>> all_;  // also those that are gone: a late use is recognised
};

Communicators& communicators();

// Calls f() with the machine's mutex held; what it throws becomes a code.
ncclResult_t nccl_call(const std::function<ncclResult_t()>& f) noexcept;

}  // namespace dtrain::test::fake_gpu
