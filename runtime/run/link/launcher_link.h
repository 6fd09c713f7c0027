// A rank's link to its launcher. The rank reports states, progress and errors, and hears when the launcher is gone or
// wants it to stop. send() may be called from any thread; callbacks come on a thread of the link. A rank that the
// launcher itself has started has a socket pair (SocketLink); the launcher's death is the end of the stream there, and
// signals say when to stop. Ranks that others start have a connection (plane_link.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "dtrain/base/fd.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

// What goes over the link, each with a "type". A message that the launcher cannot read is ignored there.
Json state_message(const std::string& state, int exit_code = 0);  // "started", "finished"
Json progress_message(const Progress& progress);
struct ErrorMessage {
  bool primary = true;  // this rank is the cause; false: it stops because of another rank
  bool agreed = false;  // so do all others, alike, and none of them is the cause
  comm::Departure departure = comm::Departure::kTold;  // of the rank to blame
  int rank = -1;                                       // the one to blame; -1: none
  std::int64_t step = -1;
  std::string cause;
  std::string remedy;
};
// "failed at batch 7", or "could not start" where the step is negative.
std::string failed_when(std::int64_t step);
Json to_json(const ErrorMessage& error);
ErrorMessage error_of(const Json& message);
Progress progress_of(const Json& message);

class LauncherLink {
 public:
  virtual ~LauncherLink() = default;
  // Calls `gone` once, when the launcher is; `stop` once, when it wants the ranks to stop after their step because it
  // was sent that signal.
  virtual void watch(std::function<void()> gone, std::function<void(int signal)> stop) = 0;
  // Whether it is by now: the thread that watches may not have come to say so.
  virtual bool is_gone() const = 0;
  // False when the launcher is gone or (with `droppable`) does not read: it may be stopped, and training goes on.
  virtual bool send(const Json& message, bool droppable = false) = 0;
  // The rank has finished, and ends now: not a word more.
  virtual void leave() = 0;
};

class SocketLink final : public LauncherLink {
 public:
  // Takes over the descriptor; it is not passed on to children of the rank.
  explicit SocketLink(UniqueFd fd);
  ~SocketLink() override;
  SocketLink(const SocketLink&) = delete;
  SocketLink& operator=(const SocketLink&) = delete;

  void watch(std::function<void()> gone, std::function<void(int signal)> stop) override;
  bool is_gone() const override;
  bool send(const Json& message, bool droppable = false) override;
  void leave() override {}

 private:
  UniqueFd fd_;
  UniqueFd stop_;  // eventfd: ends the thread
  std::thread thread_;
};

}  // namespace dtrain::run
