// The hosts of a run from the side of one keeper: how they meet, which of them train, what follows the loss of one
// (recovery.on_host_loss), and how the run takes in one that comes later. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/keepers.h"
#include "keeper/node_ranks.h"
#include "keeper/run_kept.h"

namespace dtrain::launcher {

class NodeHosts {
 public:
  // All outlive it. `node`: of this host, with the least number of hosts that may train.
  NodeHosts(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables);

  // Waits for the others, and learns from them what the run is (`run`), and which hosts train now. Returns those that
  // trained before. Errors as rank::Keepers::meet().
  std::vector<int> meet(RunKept& run, const std::function<void()>& check);
  bool have_met() const { return keepers_ != nullptr; }
  rank::Keepers& keepers() const { return *keepers_; }

  // This host among those that train; rank -1: it waits for a place.
  const rank::NodeEnvironment& place() const { return place_; }
  bool trains() const { return place_.rank >= 0; }
  // This host has rank 0, and decides what follows an attempt.
  bool decides() const { return place_.rank == 0; }
  // The same once a host is lost: the first of those that are left.
  bool decides_without_lost() const;
  bool are_all_present() const { return present_.size() == static_cast<std::size_t>(node_.nodes); }

  // Other hosts may take part: rank 0's host looks for them again and again, once its ranks train. Returns true once,
  // when they are to save and to end for that: those of the other hosts end with them.
  bool look_for_others(bool trains_now);
  // What all hosts are to know of it at the end of the attempt; null: no others are there.
  const Json& order() const { return order_; }

  // The hosts part, and meet again. `order`: the decider's.
  void part(const Json& order);
  // A host is lost, which was noticed then: the next meeting is that of the others.
  void lose(std::chrono::steady_clock::time_point noticed);

 private:
  bool shrinks() const { return plan_.on_host_loss == config::OnHostLoss::kShrink; }
  rank::KeeperOptions options(const RunKept& run) const;
  std::chrono::milliseconds serves_after() const;
  std::chrono::milliseconds patience_with_keeper() const;
  bool claim(const RunKept& run, const std::vector<int>& present) const;
  void take_place(const std::vector<int>& hosts);

  // How the next meeting begins.
  struct Next {
    std::size_t before = 0;  // hosts that part in good order, or are left
    std::optional<rank::Keepers::LostHost> lost;
    std::chrono::steady_clock::time_point noticed = {};
    bool with_host_0 = false;  // which has been absent, and serves the meeting
  };

  const NodePlan& plan_;
  const rank::NodeEnvironment& node_;
  const rank::Variables& variables_;
  const std::string host_name_;
  rank::NodeEnvironment place_;
  std::vector<int> present_;            // at the last meeting
  std::vector<std::string> names_;      // of the machines, where a host was present once
  std::vector<std::string> addresses_;  // at the last meeting
  Next next_;
  Json order_;
  std::chrono::steady_clock::time_point next_room_;
  std::unique_ptr<rank::WaitingRoom> room_;  // null: all hosts train, or the ranks do not yet
  std::unique_ptr<rank::Keepers> keepers_;
};

}  // namespace dtrain::launcher
