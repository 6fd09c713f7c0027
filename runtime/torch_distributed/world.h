// The processes that exchange through one control plane, and what they share: the connection to rank 0, the mailbox,
// and the arena of registered memory. Several process groups of PyTorch may be groups of one world.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtrain/base/log.h"
#include "dtrain/comm/arena.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/mailbox.h"
#include "processes.h"

namespace dtrain::torch_distributed {

class FlightRecorder;
class MailLane;

class World {
 public:
  // What its ranks have agreed upon through a store.
  struct Terms {
    std::string id;  // differs between worlds
    comm::ControlOptions control;
    comm::ControlEndpoint server;  // of rank 0
    std::vector<int> hosts;        // the number of each rank's host
    std::vector<int> names;        // by which PyTorch's programs, and the arena, know the ranks
    std::vector<pid_t> pids;       // of each rank
  };
  // Collective. Rank 0's control plane is there already: `serving`.
  World(Terms terms, std::unique_ptr<comm::ControlPlane> control, std::string address);
  // Leaves the world: its other ranks may go on without this one. Rank 0 serves them until they leave, too.
  ~World();
  World& operator=(World&&) = delete;

  const std::string& id() const { return terms_.id; }
  comm::ControlPlane& control() { return *control_; }
  int rank() const { return terms_.control.world.rank; }
  int name_of(int rank) const { return terms_.names.at(static_cast<std::size_t>(rank)); }
  int host_of(int rank) const { return terms_.hosts.at(static_cast<std::size_t>(rank)); }
  const std::string& address() const { return address_; }  // of this host; empty: all ranks are on one host
  const Logger& log() const { return terms_.control.log; }
  const std::shared_ptr<comm::Arena>& arena() const { return arena_; }
  const std::shared_ptr<const Processes>& processes() const { return processes_; }
  const std::shared_ptr<MailLane>& mail() const { return mail_; }
  const std::shared_ptr<FlightRecorder>& flight() const { return flight_; }

  // A number for a group, given by this rank, which no other rank gives.
  std::uint32_t number_group();
  // False once a rank has failed, or this process has announced its end: no new group may use it.
  bool is_live() const { return !ended_ && !control_->failure(); }
  // Announces that this process ends: with a cause it has failed. Rank 0 then waits for the others.
  void announce_end(const std::string& cause);

 private:
  const Terms terms_;
  const std::string address_;
  const int pid_;
  std::unique_ptr<comm::ControlPlane> control_;
  std::shared_ptr<const Processes> processes_;
  std::shared_ptr<comm::Arena> arena_;
  std::shared_ptr<FlightRecorder> flight_;
  std::shared_ptr<MailLane> mail_;
  std::uint32_t groups_ = 0;
  bool ended_ = false;
};

// The place of a process group in a world.
struct Place {
  std::shared_ptr<World> world;
  std::vector<int> members;  // ranks of the world, in the order of the group
  std::uint32_t number = 0;  // of the group, on all its ranks
  bool is_first = false;     // the world was made for this group, and has its ranks
};

// How a group is to be found.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone; it may have served an earlier group of that name
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::vector<int> names;  // by which PyTorch's programs know the ranks
};

// Collective over the ranks of the group. They use a world that all of them are in, or else make one. CommError names
// the ranks that do not come.
Place meet(const Meeting& meeting);

}  // namespace dtrain::torch_distributed
