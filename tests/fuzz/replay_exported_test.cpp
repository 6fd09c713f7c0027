// The target that needs libtorch.
#include "replay.h"

namespace dtrain::fuzz {

INSTANTIATE_TEST_SUITE_P(All, Replay, ::testing::Values(Target{"exported", exported}),
                         [](const auto& test) { return test.param.first; });

}  // namespace dtrain::fuzz
