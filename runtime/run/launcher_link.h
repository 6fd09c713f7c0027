// A rank's link to its launcher: a socket pair. The rank reports states, progress and errors; the launcher's death is
// seen as the end of the stream. send() may be called from any thread; the callback comes on the link's own thread.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "dtrain/base/fd.h"
#include "dtrain/base/json.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

// What goes over the link, each with a "type". A message that the launcher cannot read is ignored there.
Json state_message(const std::string& state);  // "started", "finished"
Json progress_message(const Progress& progress);
// `primary`: this rank is the cause; false: it stops because of another rank. `agreed`: so are all others, alike.
Json error_message(bool primary, std::int64_t step, const std::string& cause, const std::string& remedy, bool agreed);
Progress progress_of(const Json& message);

class LauncherLink {
 public:
  // Takes over the descriptor; it is not passed on to children of the rank.
  explicit LauncherLink(UniqueFd fd);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  // Calls `gone` once, when the launcher's end is closed.
  void watch(std::function<void()> gone);
  // Whether the launcher's end is closed by now: the thread that watches may not have come to say so.
  bool is_gone() const;
  // False when the launcher is gone or (with `droppable`) does not read: it may be stopped, and training goes on.
  bool send(const Json& message, bool droppable = false);

 private:
  UniqueFd fd_;
  UniqueFd stop_;  // eventfd: ends the thread
  std::thread thread_;
};

}  // namespace dtrain::run
