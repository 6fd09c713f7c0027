#include "read/dump_files.h"

#include <algorithm>
#include <charconv>

namespace dtrain::analysis {
namespace {

namespace fs = std::filesystem;

// All dumps of one kind, by the number or id in their names.
std::vector<std::pair<std::string, fs::path>> find_dumps(const fs::path& folder, const std::string& prefix) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || entry.path().extension() != ".jsonl") continue;
    found.emplace_back(name.substr(prefix.size(), name.size() - prefix.size() - 6), entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::pair<int, fs::path>> rank_dumps(const fs::path& folder) {
  std::vector<std::pair<int, fs::path>> found;
  for (const auto& [digits, path] : find_dumps(folder, "rank-")) {
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size()) found.emplace_back(number, path);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return found;
}

std::vector<std::pair<std::string, fs::path>> agent_dumps(const fs::path& folder) {
  return find_dumps(folder, "agent-");
}

}  // namespace dtrain::analysis
