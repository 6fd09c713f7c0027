// Every seed and every input that once was a finding, through the entry functions of the fuzz targets: a program's
// tests are instantiated with its targets.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "targets.h"

namespace dtrain::fuzz {

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

}  // namespace dtrain::fuzz
