// A folder that is open, so that files are made in it and in no other that takes its name later.
#pragma once

#include <filesystem>

#include "dtrain/base/fd.h"

namespace dtrain::checkpoints {

struct OpenFolder {
  std::filesystem::path path;  // for messages
  UniqueFd fd;
};

}  // namespace dtrain::checkpoints
