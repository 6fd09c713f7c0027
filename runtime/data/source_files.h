// Several files as one source: patterns in the paths of a source, and concatenated data sets.
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

// Returns the path itself or, for a pattern (*, ?, […]), the matching files in the order of their names. DataError: no
// file matches.
std::vector<std::filesystem::path> matching_files(const std::string& path);

// Returns the concatenation of at least one data set. DataError: their fields differ.
std::shared_ptr<Dataset> concatenated(std::vector<std::shared_ptr<Dataset>> datasets);

// Opens a source whose paths may be patterns: calls `open` once for the first file of each key, once for the second
// files, and so on. DataError: the keys name different numbers of files.
std::shared_ptr<Dataset> open_files(const Source& source, std::span<const SourceKey> keys,
                                    const std::function<std::shared_ptr<Dataset>(const Source&)>& open);

// True if a part of the path begins with a dot: `.DS_Store`, `._a.jpg`, `.ipynb_checkpoints/a.jpg`. `.` and `..` do not
// count.
bool is_hidden(const std::filesystem::path& path);

// Counts the files of a source that are no samples.
class LeftOut {
 public:
  // `what`: a description of the others: "that are no picture".
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

// Writes the text, unless empty, to standard error, the log of a rank: a sample may be left out by mistake.
void tell_left_out(const std::string& source, const std::string& left_out);

}  // namespace dtrain::data
