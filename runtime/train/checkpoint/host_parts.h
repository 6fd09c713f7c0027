// The part of a state in memory that a host has, where each of several hosts has a folder of its own: what all ranks
// have alike, what is its own ranks' own, and copies of what belongs to the ranks of the hosts before it. Hosts settle
// each state together: only then the one before it is given up. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/neighbour_copies.h"
#include "checkpoint/snapshot.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

class HostParts {
 public:
  // The references outlive the object.
  HostParts(rank::RankSession& session, const CheckpointHosts& hosts, const Snapshot& snapshot);

  int copies() const { return copies_; }  // recovery.copies, at most the other hosts
  // The ranks' files of the last state that are in this host's part, without checksums.
  std::vector<checkpoints::ManifestFile> files() const;

  // A leader: connects this host to those with which it exchanges copies. Collective over leaders.
  void connect();
  // A leader, once its ranks have written their files into the folder of the slot: begins to send them, and returns
  // true when the copies of the last state have come and gone, or failed. `at_once`: without pauses.
  bool copies_ended(const std::filesystem::path& slot, bool at_once);
  // A leader, after that: completes this host's part of the state of which `files` has the shared ones. SystemError.
  void complete(const std::filesystem::path& folder, checkpoints::SlotNames& names,
                const checkpoints::GenerationBoard& board, checkpoints::GenerationFiles files);
  // A leader: no state can be completed here any more.
  void fail() { has_failed_ = true; }

  struct Outcome {
    bool is_whole = true;           // every host has its part, and the state is settled; else all have given it up
    bool can_go_on = true;          // false: a host cannot have parts any more
    double copy_s = 0, link_s = 0;  // the most of any host: that training was held up, that bytes were on their way
  };
  // All hosts have completed their parts, or failed. Collective.
  Outcome settle(const std::filesystem::path& folder, checkpoints::SlotNames& names,
                 const checkpoints::GenerationBoard& board);
  std::size_t bytes_sent() const { return sent_.bytes; }  // of the last state, by this host

 private:
  std::vector<NeighbourCopies::Files> files_of_hosts() const;

  rank::RankSession& session_;
  const CheckpointHosts& hosts_;
  const Snapshot& snapshot_;
  const int host_;  // this rank's
  const int copies_;
  std::optional<NeighbourCopies> neighbours_;
  bool is_sending_ = false;
  NeighbourCopies::Result sent_;      // of the last state
  std::optional<std::int64_t> part_;  // the batch of this host's part that is complete and not settled
  bool has_failed_ = false;
};

}  // namespace dtrain::train
