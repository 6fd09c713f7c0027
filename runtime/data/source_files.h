// The files of a source as a data set: patterns in paths, several files as one data set, files that are no samples, and
// arrays that stay in their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data_file.h"
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

// Lists the files that a path with patterns names: `*`, `?` and `[…]` have their meaning in the shell; {000..012}
// stands for the numbers of a range, with as many digits as its begin, and {a,b} for either. Sorted, each file once.
// DataError if the pattern names no file.
std::vector<std::filesystem::path> files_named(const std::string& pattern);

// Arrays that stay in their files: each field is one array of a file, sample after sample, and a sample is read on
// demand. The ranks of a host share the system's page cache, so the files may be larger than memory.
//
// Samples are read with pread() and not through a mapping. For samples of 64 KB and more that is as fast as memcpy, and
// a file that has become shorter, or a failing disk, gives an error that names the place, while a mapping would kill
// the process. Immutable; any thread may call everything.
class ArrayFiles final : public Dataset {
 public:
  struct Array {
    std::shared_ptr<const DataFile> file;
    std::uint64_t offset = 0;  // bytes before sample 0
    Field field;
  };
  // DataError: a file is too short for this number of samples.
  ArrayFiles(std::int64_t size, std::vector<Array> arrays);

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override;
  Blocks blocks() const override;
  void will_read(std::int64_t first, std::int64_t count) const override;
  std::string where(std::int64_t sample) const override;

 private:
  std::uint64_t offset_of(std::size_t array, std::int64_t sample) const;

  std::int64_t size_;
  std::vector<Array> arrays_;
  std::vector<Field> fields_;
};

}  // namespace dtrain::data
