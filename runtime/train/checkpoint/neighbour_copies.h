// Copies of what belongs to a host's ranks on the hosts after it, so that the state of a lost host is not lost. The
// first rank of each host has a thread at a low priority that sends files to the next hosts, and receives theirs, while
// training goes on. It sends in pieces, with pauses, so that the link is free for gradients most of the time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/mailbox.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

class NeighbourCopies {
 public:
  // Of a host: the files of its ranks, in the order of sending.
  struct File {
    std::string name;
    std::size_t bytes = 0;
  };
  using Files = std::vector<File>;

  // `leaders`: the first ranks of all hosts, in their order; this rank is that of `host`. Collective over them.
  // CommError.
  NeighbourCopies(rank::RankSession& session, std::vector<int> leaders, int host, int copies);
  ~NeighbourCopies();
  NeighbourCopies& operator=(NeighbourCopies&&) = delete;

  const std::vector<int>& receivers() const { return receivers_; }  // hosts that get this host's files
  const std::vector<int>& senders() const { return senders_; }      // hosts whose files come here

  // Sends the files of this host, and receives those of the senders, all in `folder`. `of_hosts`: the files of each
  // host. `at_once`: without pauses. The last transfer has ended. Every leader calls it for the same state.
  void start(const std::filesystem::path& folder, std::vector<Files> of_hosts, bool at_once);

  struct Result {
    bool ended = true;
    std::string problem{};  // empty: all files are there
    bool connected = true;  // false: no further transfer is possible
    double link_s = 0;      // for which the pieces were on their way
    std::size_t bytes = 0;  // sent
  };
  Result poll() const;  // of the last transfer

 private:
  class Outgoing;
  class Incoming;
  void run();
  void carry();

  const int host_;
  std::vector<int> receivers_, senders_;
  std::unique_ptr<comm::ControlPlane> leaders_;
  std::unique_ptr<comm::Mailbox> mailbox_;

  mutable std::mutex mutex_;  // guards what follows; the thread alone uses the transfer while it runs
  std::condition_variable changed_;
  bool stops_ = false, has_transfer_ = false;
  std::filesystem::path folder_;
  std::vector<Files> of_hosts_;
  bool at_once_ = false;
  Result result_;
  std::thread thread_;
};

}  // namespace dtrain::train
