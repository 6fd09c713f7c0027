// `dtrain follow`: a process in Python that reads a run's folder and shows the run in an experiment tracker of others
// (python/dtrain/follow). Plain functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/tracking.h"
#include "dtrain/rank/environment.h"

namespace dtrain::launcher {

struct FollowRequest {
  std::filesystem::path run;
  config::Tracker tracker;
  std::vector<std::string> options = {};  // those of the process itself
};

// Returns the command of the process. ConfigError: there is no Python; Error: dtrain's own part in Python is missing.
std::vector<std::string> follow_command(const FollowRequest& request, const rank::Variables& variables);

}  // namespace dtrain::launcher
