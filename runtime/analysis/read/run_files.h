// Reads the files of a run's folder: lines of files that may grow, the list of dumps, the counts of operators, and the
// other files for a summary. The classes are for one thread, the functions for any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/profile/records.h"

namespace dtrain::analysis {

// Follows a file of lines to which others append and whose end they sometimes remove: the running window of a dump is
// replaced when it ends (docs/profile-format.md), so the file gets shorter or has other lines before the read position.
// No file stays open between calls, because network file systems show new data on opening.
class FileTail {
 public:
  // The first call reads `head` bytes from the start, then the end. If more than `most` bytes are new, only the last of
  // them are read. If lines were replaced, the replacing lines begin `again` bytes before the new end or later: all
  // lines from there are passed on, also those that were passed on before.
  struct Limits {
    std::int64_t head = 64 << 10;
    std::int64_t most = 1 << 20;
    std::int64_t again = 0;
  };

  explicit FileTail(std::filesystem::path path) : FileTail(std::move(path), Limits{}) {}
  FileTail(std::filesystem::path path, Limits limits) : path_(std::move(path)), limits_(limits) {}

  // Receives whole lines without their newlines, as FileLines gives them.
  using LineSink = std::function<void(std::string_view line)>;
  // Passes on new lines; an incomplete last line waits for a later call. `skipped` is called before the first line
  // after omitted ones. False: the file cannot be read (yet).
  bool poll(const LineSink& line, const std::function<void()>& skipped = {});

  // Returns the place of the line that is being passed on, "events.jsonl:12", or its byte if lines were omitted.
  std::string place() const;
  // Returns why the file, or a part of it, cannot be read; empty: it can, or it is not there.
  const std::string& problem() const { return problem_; }

  // Returns the time of the last write in seconds since 1970; empty: the file could not be read yet.
  std::optional<double> written() const { return written_; }

 private:
  bool starts_line(int fd) const;
  std::int64_t unread(int fd) const;  // bytes after offset_
  // Reads from offset_ to the end, or until `stop` has been passed.
  void read(int fd, std::int64_t stop, bool whole, const LineSink& line);

  std::filesystem::path path_;
  Limits limits_;
  std::int64_t offset_ = 0;  // after the last whole line that was read
  std::int64_t number_ = 0;  // of that line; -1: lines were omitted before it
  std::string problem_;
  ino_t file_ = 0;  // another file by the same name is read from its start
  std::optional<double> written_;
};

// Return the dumps in the folder profile/ of a run so far, ascending; none if the folder does not exist.
std::vector<std::pair<int, std::filesystem::path>> rank_dumps(const std::filesystem::path& folder);
std::vector<std::pair<std::string, std::filesystem::path>> monitor_dumps(const std::filesystem::path& folder);  // by id

// Reads profile/operators-rank-NNNN.json without trust; ascending by rank. A file that cannot be read adds a line to
// `warnings`.
std::vector<profile::OperatorCounts> read_operator_counts(const std::filesystem::path& folder,
                                                          std::vector<std::string>& warnings);

// Reads profile/kernels-rank-NNNN.json in the same way.
std::vector<profile::KernelTimes> read_kernel_times(const std::filesystem::path& folder,
                                                    std::vector<std::string>& warnings);

// Adds the facts of plan.json, events.jsonl and metrics.jsonl; each may be missing.
void add_run_files(const RunProfile& run, RunSummary& summary);

}  // namespace dtrain::analysis
