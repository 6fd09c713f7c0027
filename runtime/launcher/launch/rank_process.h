// A rank that is a child of this process: its process, its link, and what it has said over it. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/rank_session.h"
#include "launch/attempts.h"
#include "launch/hanging_ranks.h"
#include "launch/standby.h"

namespace dtrain::launcher {

// What a rank has told since the last look.
struct RankNews {
  std::optional<rank::Progress> progress;  // the newest
  std::filesystem::path folder;            // of the run; empty: it has told none
  std::int64_t step = 0;                   // with the folder: the batches that are done
  std::map<std::string, UniqueFd> memory;  // to be kept for the ranks of later attempts, by name
};

class RankProcess {
 public:
  static constexpr int kLinkFd = 3;  // the number of the link in the rank

  // Starts a rank as `options` say, by `start`. It gets its link, and nothing to read. SystemError when the program
  // cannot be started.
  static RankProcess start(int rank, ProcessOptions options,
                           const std::function<Standby::Started(const ProcessOptions&)>& start);

  int rank() const { return rank_; }
  Process& process() { return process_; }
  const Process& process() const { return process_; }
  int link_fd() const { return link_.fd(); }

  // Asks the rank to save after its step, and to end: it is started again.
  void pause() { link_.send(std::string(1, rank::kPause)); }
  // Reads the rank's messages.
  RankNews read_link();
  // True once the process has ended.
  bool reap();
  const std::optional<ExitStatus>& status() const { return status_; }
  const std::optional<rank::ErrorMessage>& error() const { return error_; }
  bool joined() const { return joined_; }      // has connected to the other ranks of this run
  bool finished() const { return finished_; }  // has trained to the end, or stopped as requested
  bool saves() const { return saves_; }        // the training state, after the failure of another rank
  bool was_asked_to_end() const { return hanging_.has_begun(); }
  bool is_fork() const { return is_fork_; }  // of the waiting process
  // As HangingRanks watches it.
  WatchedRank watched() { return {rank_, pulse_.get(), &process_, !status_ && !finished_}; }
  // Ends the process if it hangs. `since`: the time since another rank has failed.
  void end(Nanoseconds since, const Patience& patience) { hanging_.end(process_, since, patience); }

 private:
  RankProcess(int rank, Standby::Started started, UnixSocket link)
      : rank_(rank), process_(std::move(started.process)), is_fork_(started.is_fork), link_(std::move(link)) {}
  void take(const Json& message, std::vector<UniqueFd>& fds, RankNews& news);

  int rank_;
  Process process_;
  bool is_fork_;
  UnixSocket link_;
  HangingProcess hanging_;
  std::unique_ptr<RankPulse> pulse_;
  bool joined_ = false;
  bool finished_ = false;
  bool saves_ = false;
  std::optional<rank::ErrorMessage> error_;
  std::optional<ExitStatus> status_;
};

}  // namespace dtrain::launcher
