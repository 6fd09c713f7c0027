// Lists the files that a path with patterns names. Private to data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dtrain::data {

// `*`, `?` and `[…]` have their meaning in the shell; {000..012} stands for the numbers of a range, with as many digits
// as its begin, and {a,b} for either. Sorted, each file once. DataError if the pattern names no file.
std::vector<std::filesystem::path> files_named(const std::string& pattern);

}  // namespace dtrain::data
