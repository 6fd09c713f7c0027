// What people see of a run: log lines of the ranks and the progress of training. On a terminal the progress is one
// line, redrawn below the others; piped, it is a plain line every few seconds, the first and the last included.
// Thread safe. A closed pipe is not an error.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/fd.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

// "epoch 1/2, batch 120/938 (13%), loss 0.5123, 12,345 samples/s, 12.3 s left"
std::string format_progress(const Progress& progress);

// Columns of the terminal that `fd` is; empty where it is none.
std::optional<int> terminal_width(int fd);

// To standard output, at once.
void print(const std::string& text);

class Screen {
 public:
  // Writes to `fd`, which must outlive it.
  Screen(int fd, bool terminal, const Clock& clock) : fd_(fd), terminal_(terminal), clock_(clock) {}

  void line(std::string_view text);
  // What goes on until there is progress; on a terminal only.
  void activity(std::string_view text);
  // A line that is shown once, ten seconds after the first progress, unless it is empty. It is made in progress().
  void after_a_while(std::function<std::string()> text) { later_ = std::move(text); }
  void progress(const Progress& progress);
  // Leaves the last progress standing, as a line of its own.
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
  std::optional<Progress> unshown_;     // piped: newer than what was printed
  std::optional<Nanoseconds> printed_;  // piped: when
  std::optional<Nanoseconds> first_;    // when the first progress came
  std::function<std::string()> later_;
};

}  // namespace dtrain::run
