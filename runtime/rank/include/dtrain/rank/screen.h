// The screen of a run: the ranks' log lines and the progress of training. On a terminal the progress is one line,
// redrawn below the others. In a pipe the progress is a plain line every few seconds, the first and the last included.
// Thread safe. A closed pipe is not an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

// "epoch 1/2, batch 120/938 (13%), loss 0.5123, 12,345 samples/s, 12.3 s left"
std::string format_progress(const Progress& progress);

// Returns the width of the terminal `fd` in columns; empty if it is no terminal.
std::optional<int> terminal_width(int fd);

// Writes to standard output and flushes it.
void print(const std::string& text);

class Screen {
 public:
  // Writes to `fd`, which must outlive this object.
  Screen(int fd, bool terminal, const Clock& clock) : fd_(fd), terminal_(terminal), clock_(clock) {}

  void line(std::string_view text);
  // Shows the present activity until there is progress; on a terminal only.
  void activity(std::string_view text);
  // Shows the line from `text` (unless empty) once, ten seconds after the first progress. progress() calls `text`.
  void after_a_while(std::function<std::string()> text) { later_ = std::move(text); }
  void progress(const Progress& progress);
  // Leaves the last progress on the screen, as a line of its own.
  void end_progress();

 private:
  void draw(std::string_view text);
  void show_later_line();
  void write(std::string_view text);
  int fd_;
  bool terminal_;
  const Clock& clock_;
  std::mutex mutex_;
  std::string drawn_;                   // the progress line on the terminal
  std::optional<Progress> unshown_;     // in a pipe: not printed yet
  std::optional<Nanoseconds> printed_;  // in a pipe: when progress was last printed
  std::optional<Nanoseconds> first_;    // the time of the first progress
  std::function<std::string()> later_;
};

// Follows the log files of ranks and passes on their new lines. All code that shows logs on a screen uses it: the
// launcher, a rank without a launcher, and `dtrain logs`. One thread at a time.

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

}  // namespace dtrain::rank
