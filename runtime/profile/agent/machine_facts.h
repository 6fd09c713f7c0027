// What the machine is, for the first line of the agent's dump: the analysis, which may run on another machine, needs it
// to judge the samples. Any thread may call.
#pragma once

#include <filesystem>

#include "dtrain/base/json.h"

namespace dtrain::profile {

// docs/profile-format.md, "machine". What is not known is left out. `root` is where proc/ and sys/ are.
Json machine_facts(const std::filesystem::path& root = "/");

}  // namespace dtrain::profile
