// Every seed and every input that once was a finding, through the entry functions of the fuzz targets.
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "targets.h"

namespace dtrain::fuzz {
namespace {

using Target = std::pair<const char*, void (*)(Input)>;

class Replay : public ::testing::TestWithParam<Target> {
 protected:
  // How many inputs of the folder were given to the target.
  static int give_all(const std::filesystem::path& folder) {
    int count = 0;
    if (!std::filesystem::exists(folder)) return count;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path().string());
      const auto content = read_file(entry.path());
      EXPECT_NO_THROW(GetParam().second({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()}));
      ++count;
    }
    return count;
  }
};

TEST_P(Replay, Seeds) {
  EXPECT_GT(give_all(std::filesystem::path(DTRAIN_SOURCE_DIR "/tests/fuzz/seeds") / GetParam().first), 0);
}

TEST_P(Replay, Crashes) {
  give_all(std::filesystem::path(DTRAIN_SOURCE_DIR "/tests/fuzz/crashes") / GetParam().first);
}

INSTANTIATE_TEST_SUITE_P(All, Replay,
                         ::testing::Values(Target{"cluster", cluster}, Target{"control_client", control_client},
                                           Target{"control_server", control_server}, Target{"csv", csv},
                                           Target{"dump", dump}, Target{"experiment", experiment}, Target{"idx", idx},
                                           Target{"loader_state", loader_state}, Target{"manifest", manifest},
                                           Target{"npy", npy}, Target{"picture", picture},
                                           Target{"safetensors", safetensors}, Target{"shards", shards},
                                           Target{"tokens", tokens}, Target{"trace", trace}),
                         [](const auto& test) { return test.param.first; });

}  // namespace
}  // namespace dtrain::fuzz
