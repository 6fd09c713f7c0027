// Follows the log files of ranks and passes on their new lines. All code that shows logs on a screen uses it: the
// launcher, a rank without a launcher, and `dtrain logs`. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"

namespace dtrain::run {

class LogTail {
 public:
  using Sink = std::function<void(int rank, std::string_view line)>;  // without the newline

  // A file that does not exist yet is opened once it does.
  void add(int rank, std::filesystem::path path);
  // Passes on the complete lines that were added since the last call. True if there were any.
  bool poll(const Sink& sink);
  // Like poll(), but also passes on an incomplete last line.
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

// Returns the last `count` lines of a file, fewer if the file is shorter; empty if it cannot be read.
std::vector<std::string> last_lines(const std::filesystem::path& path, std::size_t count);

// Ends a last line that a full disk has cut short: adds a newline if it fits, else removes the line.
void end_torn_line(const std::filesystem::path& path);

// "[rank=1] "
std::string rank_prefix(int rank);

}  // namespace dtrain::run
