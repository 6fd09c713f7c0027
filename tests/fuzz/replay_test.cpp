// The targets that need no libtorch.
#include "replay.h"

namespace dtrain::fuzz {

INSTANTIATE_TEST_SUITE_P(All, Replay,
                         ::testing::Values(Target{"cluster", cluster}, Target{"control_client", control_client},
                                           Target{"control_server", control_server}, Target{"csv", csv},
                                           Target{"dump", dump}, Target{"experiment", experiment},
                                           Target{"handshake", handshake}, Target{"idx", idx}, Target{"ledger", ledger},
                                           Target{"loader_state", loader_state}, Target{"manifest", manifest},
                                           Target{"npy", npy}, Target{"picture", picture},
                                           Target{"run_files", run_files}, Target{"safetensors", safetensors},
                                           Target{"shards", shards}, Target{"store_client", store_client},
                                           Target{"store_server", store_server}, Target{"tokens", tokens},
                                           Target{"trace", trace}),
                         [](const auto& test) { return test.param.first; });

}  // namespace dtrain::fuzz
