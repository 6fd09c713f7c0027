// The screen of a run: the ranks' log lines and the progress of training. On a terminal the progress is one line,
// redrawn below the others. In a pipe the progress is a plain line every few seconds, the first and the last included.
// Thread safe. A closed pipe is not an error.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
