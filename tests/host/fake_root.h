// A folder in the place of /, with the files that a test puts there.
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"

namespace dtrain::host {

class FakeRoot : public testing::Test {
 protected:
  void put(const std::filesystem::path& path, const std::string& text) const { folder_.write(path, text); }

  const TemporaryFolder folder_;
  const std::filesystem::path& root_ = folder_.path();
};

}  // namespace dtrain::host
