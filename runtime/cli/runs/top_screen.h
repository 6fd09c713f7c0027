// The terminal while `dtrain top` redraws it: the alternate screen, keys without Enter and without echo, no cursor. All
// of that is restored however the program ends: the end of the object, an exception, a signal, a crash.
//
// This is our own code and no curses: a view is lines of text in any case (--once prints them, tests read them), and to
// show them takes seven sequences that all terminals support whose TERM is not dumb. Curses would add a library to the
// program's start, a second copy of the screen, a state of the whole process, and handlers for the very signals that
// must be ours.
//
// One object a process, on the thread that made it, before other threads exist.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/fd.h"

namespace dtrain::cli {

struct ScreenSize {
  int width = 80, height = 24;
};

class TopScreen {
 public:
  // Requires run::can_redraw(STDOUT_FILENO). SystemError.
  TopScreen();
  ~TopScreen();
  TopScreen(const TopScreen&) = delete;
  TopScreen& operator=(const TopScreen&) = delete;

  ScreenSize size() const;
  // Shows the lines in the place of those shown before.
  void show(const std::vector<std::string>& lines);

  enum class Event { kTime, kQuit, kSignalled, kUp, kDown, kPageUp, kPageDown, kTop, kResized };
  // Returns the next event. kTime: none until `until` of the monotonic clock. kSignalled: a process asks for the end.
  Event wait(Nanoseconds until, const Clock& clock);

 private:
  void enter();
  Event read_keys();
  Event read_signal();
  int next_signal();  // 0: none
  void suspend();

  sigset_t signals_{};
  UniqueFd signal_fd_;
  bool keys_ = false;  // standard input is the terminal
};

}  // namespace dtrain::cli
