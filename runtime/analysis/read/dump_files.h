// Which dumps a run has so far. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::analysis {

// Of a run's profile/, ascending; a folder that is not there has none.
std::vector<std::pair<int, std::filesystem::path>> rank_dumps(const std::filesystem::path& folder);
std::vector<std::pair<std::string, std::filesystem::path>> agent_dumps(const std::filesystem::path& folder);  // by id

}  // namespace dtrain::analysis
