#include "shards/file_list.h"

#include <algorithm>
#include <cstdint>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

constexpr std::size_t kMostFiles = 1'000'000;

std::vector<std::string> alternatives_of(const std::string& inside) {
  const auto dots = inside.find("..");
  const auto first = to_number<std::int64_t>(inside.substr(0, dots));
  const auto last = dots == std::string::npos ? std::nullopt : to_number<std::int64_t>(inside.substr(dots + 2));
  if (first && last && *first >= 0 && *last >= 0) {
    std::vector<std::string> numbers;
    for (std::int64_t number = *first; number <= *last && numbers.size() < kMostFiles; ++number) {
      const std::string digits = std::to_string(number);
      numbers.push_back(std::string(dots - std::min(dots, digits.size()), '0') + digits);
    }
    return numbers;
  }
  return split(inside, ',');
}

// Returns the patterns without braces.
std::vector<std::string> expanded(const std::string& pattern) {
  const auto open = pattern.find('{');
  const auto close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return {pattern};
  std::vector<std::string> all;
  for (const std::string& one : alternatives_of(pattern.substr(open + 1, close - open - 1))) {
    for (const std::string& rest : expanded(pattern.substr(close + 1))) {
      all.push_back(pattern.substr(0, open) + one + rest);
      if (all.size() > kMostFiles)
        throw DataError(pattern + ": names more than " + std::to_string(kMostFiles) + " files");
    }
  }
  return all;
}

}  // namespace

std::vector<std::filesystem::path> files_named(const std::string& pattern) {
  std::vector<std::filesystem::path> files;
  for (const std::string& one : expanded(pattern)) {
    const std::vector<std::filesystem::path> matching =
        matching_files(one);  // a missing file is an error when it is opened
    files.insert(files.end(), matching.begin(), matching.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw DataError(pattern + ": names no file", "check the numbers in its braces");
  return files;
}

}  // namespace dtrain::data
