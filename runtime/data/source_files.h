// Several files as one source: patterns in the paths of a source, and data sets one behind the other.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"
#include "dtrain/data/formats.h"

namespace dtrain::data {

// The files that a path names: itself, or, where it is a pattern (*, ?, […]), those that match, in the order of their
// names. DataError: no file matches.
std::vector<std::filesystem::path> matching_files(const std::string& path);

// The data sets one behind the other, as one. DataError: their fields differ. At least one.
std::shared_ptr<Dataset> concatenated(std::vector<std::shared_ptr<Dataset>> datasets);

// Opens a source whose paths may be patterns: `open` once for the first file of each key, once for the second ones, and
// so on. DataError: the keys name different numbers of files.
std::shared_ptr<Dataset> open_files(const Source& source, std::span<const SourceKey> keys,
                                    const std::function<std::shared_ptr<Dataset>(const Source&)>& open);

}  // namespace dtrain::data
