// A rank's connection to its launcher. The rank reports states, progress and errors. Callbacks report that the launcher
// is gone or asks the rank to stop; they run on a thread of the link. send() may be called from any thread. A child of
// the launcher has a socket pair (SocketLink): the stream ends with the launcher, and signals ask for a stop. Ranks
// that mpirun or srun starts have a control plane (plane_link.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

// The messages of the link, each with a "type". The launcher ignores those it cannot read.
Json state_message(const std::string& state, ExitCode exit_code = ExitCode::kDone);  // "started", "finished"
Json progress_message(const Progress& progress);
struct ErrorMessage {
  bool primary = true;  // this rank failed first; false: it stops because of another rank
  bool agreed = false;  // every rank reports the same error, and none of them is to blame
  comm::Departure departure = comm::Departure::kReported;  // the way in which the failed rank left
  int rank = -1;                                           // the failed rank; -1: none
  std::int64_t step = -1;
  std::string cause;
  std::string remedy;
};
// "failed at batch 7", or "could not start" if the step is negative.
std::string failed_when(std::int64_t step);
Json to_json(const ErrorMessage& error);
ErrorMessage error_of(const Json& message);
Progress progress_of(const Json& message);

class LauncherLink {
 public:
  virtual ~LauncherLink() = default;
  // Calls `gone` once, when the launcher is gone. Calls `stop` once, when the launcher asks the ranks to stop after
  // their step, with the signal that it received.
  virtual void watch(std::function<void()> gone, std::function<void(int signal)> stop) = 0;
  // True if the launcher is gone now. The watching thread may not have reported it yet.
  virtual bool is_gone() const = 0;
  // False if the launcher is gone or does not read in time. `droppable`: do not wait for it, because it may be stopped.
  virtual bool send(const Json& message, bool droppable = false) = 0;
  // Reports that the rank has finished. Nothing is sent after this.
  virtual void leave() = 0;
};

class SocketLink final : public LauncherLink {
 public:
  // Takes over the file descriptor, which children of the rank do not inherit.
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
