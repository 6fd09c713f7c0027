// Several files as one source: patterns in the paths of a source, and data sets one behind the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
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

// Whether a part of the path begins with a dot, as `.DS_Store`, `._a.jpg` and `.ipynb_checkpoints/a.jpg`. `.` and `..`
// do not count.
bool is_hidden(const std::filesystem::path& path);

// What a source has besides its samples.
class LeftOut {
 public:
  // `what`: what the others are: "that are no picture".
  explicit LeftOut(std::string what) : what_(std::move(what)) {}
  void add_hidden(const std::filesystem::path& path) { add(hidden_, path); }
  void add_other(const std::filesystem::path& path) { add(other_, path); }
  // "2 hidden (.DS_Store, …), 1 that is no picture (notes.txt)"; empty: nothing is left out.
  std::string to_string() const;

 private:
  struct Some {
    std::int64_t count = 0;
    std::string first;
  };
  static void add(Some& some, const std::filesystem::path& path);

  std::string what_;
  Some hidden_, other_;
};

// Writes what was left out, if anything, to standard error, which is the log of a rank: a sample may be among it.
void tell_left_out(const std::string& source, const std::string& left_out);

}  // namespace dtrain::data
