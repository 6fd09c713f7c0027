// Follows the log files of ranks and hands on their new lines. What shows logs on a screen uses it: the launcher, a
// rank without one, and `dtrain logs`. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class LogTail {
 public:
  using Sink = std::function<void(int rank, std::string_view line)>;  // without the newline

  // A file that is not there yet is opened once it is.
  void add(int rank, std::filesystem::path path);
  // Hands over the whole lines that were added since the last call. True when there were any.
  bool poll(const Sink& sink);
  // The same, and what stands after the last newline.
  void finish(const Sink& sink);

 private:
  struct File {
    int rank = 0;
    std::filesystem::path path;
    UniqueFd fd;
    std::int64_t offset = 0;
    std::string partial;
  };
  bool read(File& file, const Sink& sink);
  std::vector<File> files_;
};

// The last `count` lines of a file, fewer when it is shorter; empty when it cannot be read.
std::vector<std::string> last_lines(const std::filesystem::path& path, std::size_t count);

// Ends a last line that a full disk has cut short: with a newline where one fits, else by taking it away.
void end_torn_line(const std::filesystem::path& path);

// "[rank=1] "
std::string rank_prefix(int rank);

}  // namespace dtrain::run
