// The ranks that train together: one generation of them at a time, with its control plane and its communicator, and how
// they find and reach each other. A process may outlive a generation: Membership::enter() replaces it by a later one,
// of the same or of other ranks.
//
// A rank of `dtrain launch` does not call enter() again yet: after a rank has failed, ExitDeadlines ends the process.
//
// One thread at a time. comm/control.h states the thread of the on_failure() callback.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/mpi.h"
#include "dtrain/comm/nccl.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_link.h"

namespace dtrain::rank {

// The ranks of the current generation.
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
  // unless finish() was called before. The functions below connect a control plane and call this.
  void enter(std::unique_ptr<comm::ControlPlane> control);
  // Collective: makes the communicator of this generation. A world of one rank always gets ShmBackend.
  void make_communicator(const comm::Backend& backend, const comm::CommunicatorOptions& options);
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
  // Returns the host's communicator if there is no other.
  comm::Communicator& device_communicator() { return device_communicator_ ? *device_communicator_ : *communicator_; }
  comm::MpiJob* mpi() { return mpi_.get(); }  // null: none
  // The address of this host for the other hosts of the run, known once the ranks have connected. Empty: the run may
  // have ranks on this host alone.
  void set_address(const std::string& address) { address_ = address; }
  bool reaches_other_hosts() const { return !address_.empty(); }

 private:
  comm::World world_;
  std::string address_;
  std::function<void(const comm::RankFailure&)> on_failure_;
  // Destroyed in reverse: the communicators use the other two, and the end of the MPI job may end the process.
  std::shared_ptr<comm::MpiJob> mpi_;
  std::unique_ptr<comm::ControlPlane> control_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> device_communicator_;  // null: none
};

// The barrier that all ranks enter once they have connected.
inline constexpr const char* kAllConnected = "run.connected";

// The ranks of a generation find each other by these functions. Each connects this rank's control plane, enters that
// generation (Membership::enter()), and returns once all its ranks have connected. They block, at most for the timeout
// in the options, and throw CommError; ConfigError if a host cannot connect to itself (check_loopback()).

// A world of one rank.
void connect_alone(Membership& membership, comm::ControlOptions options);

// Ranks of one host. Rank 0 writes its address and a fresh secret into `file` (rendezvous.h), which is removed
// once all have connected.
void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file);

// MPI carries rank 0's address. If `options` has no secret, MPI carries one as well, unencrypted like all of its
// traffic. `network_interface`: the one that rank 0 listens on if there are several hosts; empty: the one with the
// default route.
void connect_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface);

// Ranks of several hosts that neither MPI nor a launcher connects: PyTorch's TCPStore at MASTER_ADDR carries rank 0's
// address and a secret, unencrypted, until all have connected. Waits until the name resolves and rank 0 answers, and
// says so in the log.
void connect_by_store(Membership& membership, comm::ControlOptions options, const RankEnvironment& environment);

// True if ranks that were started like this use MPI. ConfigError if they need MPI but were not started with it, or if
// they are on several hosts and nothing says where rank 0 is.
bool needs_mpi(const RankEnvironment& environment, const std::optional<comm::Backend>& wanted);

// Finds the ranks that have not come to MPI: a rank inside MPI_Init cannot answer, and MPI itself does not name them.
// With a launcher, each rank publishes its arrival on the launcher's plane. Without one, it listens on a UNIX socket
// named by job and rank; ranks of the same host see that socket, and it ends with its process. One thread at a time.
class MpiArrival {
 public:
  // Publishes that this rank has come. `plane` may be null. `job` is the same for all ranks of the job.
  MpiArrival(const comm::World& world, const std::string& job, PlaneLink* plane);
  // "rank 1, rank 3": the ranks that have not come, for the text of a time-out. Takes a moment, in which others look.
  std::string missing() const;

 private:
  bool has_come(int rank) const;
  std::string mark_of(int rank) const;

  const comm::World& world_;
  const std::string job_;
  PlaneLink* const plane_;
  std::optional<UnixListener> mark_;
};

}  // namespace dtrain::rank
