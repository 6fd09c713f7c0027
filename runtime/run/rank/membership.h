// The ranks that train together: one generation of them at a time, with its control plane and its communicator. A
// process may outlive a generation: enter() replaces it by a later one, of the same or of other ranks.
//
// A rank of `dtrain launch` does not call enter() again yet: after a rank has failed, ExitDeadlines ends the process.
//
// One thread at a time. comm/control.h states the thread of the on_failure() callback.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/mpi.h"
#include "dtrain/comm/nccl.h"

namespace dtrain::run {

class Membership {
 public:
  // `mpi` carries data between hosts; null if shared memory is enough. A process can enter MPI only once, so every
  // generation uses the same job and must consist of all its ranks.
  explicit Membership(std::shared_ptr<comm::MpiJob> mpi = nullptr) : mpi_(std::move(mpi)) {}
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Replaces the current generation by the one that `control` connects. The old communicator is destroyed first, and
  // its buffers must be released by then; the old control plane follows. Peers take that for a failure of this rank
  // unless finish() was called before. The functions in connect_ranks.h connect a control plane and call this.
  void enter(std::unique_ptr<comm::ControlPlane> control);
  // Collective: makes the communicator of this generation. `backend`: "shm", "mpi" or "hierarchical"; a world of one
  // rank always gets "shm".
  void make_communicator(const std::string& backend, const comm::CommunicatorOptions& options);
  // Collective: makes the communicator of this generation for data on the ranks' GPUs.
  void make_device_communicator(const comm::NcclOptions& nccl, const comm::CommunicatorOptions& options);
  // Calls `callback` when a rank fails: once in each generation, this one and later ones.
  void on_failure(std::function<void(const comm::RankFailure&)> callback);
  // Releases the communicators and stays connected.
  void release_communicators();
  // Ends this generation in good order: waits until every rank has called it. Not after a failure.
  void finish() { control_->finish(); }

  bool is_connected() const { return control_ != nullptr; }
  std::uint32_t generation() const { return control_->generation(); }
  const comm::World& world() const { return world_; }
  comm::ControlPlane& control() { return *control_; }
  bool has_communicator() const { return communicator_ != nullptr; }
  comm::Communicator& communicator() { return *communicator_; }
  // The host's communicator where there is no other.
  comm::Communicator& device_communicator() { return device_communicator_ ? *device_communicator_ : *communicator_; }
  comm::MpiJob* mpi() { return mpi_.get(); }  // null: none

 private:
  comm::World world_;
  std::function<void(const comm::RankFailure&)> on_failure_;
  // Destroyed in reverse: the communicators use the other two, and the end of the MPI job may end the process.
  std::shared_ptr<comm::MpiJob> mpi_;
  std::unique_ptr<comm::ControlPlane> control_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> device_communicator_;  // null: none
};

}  // namespace dtrain::run
