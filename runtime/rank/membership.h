// The ranks that train together: one generation of them at a time, with its control plane and its communicator, and how
// they find and reach each other. A process may outlive a generation: Membership::enter() replaces it by a later one,
// of the same or of other ranks.
//
// A rank of `dtrain launch` does not call enter() again yet: after a rank has failed, ExitDeadlines ends the process.
//
// One thread at a time. comm/control.h states the thread of the on_failure() callback.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
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
#include "stopped_ranks.h"

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
  // Collective: from now on ranks that are stopped are noticed (stopped_ranks.h), until the end of this generation.
  void watch_for_stopped_ranks(const std::string& host_name, std::chrono::milliseconds patience, Logger log);
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
  const std::string& address() const { return address_; }
  bool reaches_other_hosts() const { return !address_.empty(); }

 private:
  comm::World world_;
  std::string address_;
  std::function<void(const comm::RankFailure&)> on_failure_;
  // Destroyed in reverse: the communicators use the other two, and the end of the MPI job may end the process.
  std::shared_ptr<comm::MpiJob> mpi_;
  std::unique_ptr<comm::ControlPlane> control_;
  std::unique_ptr<StoppedRanks> stopped_;  // null: a launcher or keepers watch the ranks
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> device_communicator_;  // null: none
};

// The barrier that all ranks enter once they have connected.
inline constexpr const char* kAllConnected = "run.connected";
inline constexpr std::size_t kSecretBytes = 32;               // of a fresh secret
inline constexpr std::chrono::milliseconds kOthersLook{500};  // the deadlines of other ranks pass a little later

// The address and secret by which the ranks of one host find rank 0: rank 0 writes them into a file, which is removed
// once all ranks have connected. The secret is fresh. One thread.
struct Contact {
  std::string address;
  std::uint16_t port = 0;
  std::string secret;
};

// Rank 0's side. The file appears complete, with mode 0600, and is removed with this object.
class RendezvousFile {
 public:
  RendezvousFile(std::filesystem::path path, const Contact& contact);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::filesystem::path path_;
};

// The other ranks' side: waits for a file whose writer lives, and ignores one that a dead job left. CommError names the
// file at the deadline; DataError if the file is malformed.
// `log` gets a line after 10 s, and then every 30 s, which ends with what `hint` returns, as the error does.
Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout, const Logger& log = nullptr,
                      const std::function<std::string()>& hint = {});

// Returns the rendezvous file of `job` in `folder`.
std::filesystem::path rendezvous_path(const std::filesystem::path& folder, const std::string& job);

// The secrets in files that only this user can read. Any thread.

// Reads the file that the launcher writes on every host, and each rank of mpirun or srun reads when it starts.
// ConfigError if there is none, or if others can read it or may have written it.
LaunchSecrets read_secret_file(const std::filesystem::path& path);

// Returns the secret in the file that the user gives to all ranks (DTRAIN_RUN_SECRET_FILE), such as a Secret that
// Kubernetes mounts: its text without the space around it. Empty: no file is given. ConfigError if it cannot be read,
// if others can read it or may have written it, or if it is too short. A file of root's may be readable to its group,
// which is how Kubernetes gives one to a user (fsGroup).
std::string read_run_secret(const std::filesystem::path& path);

// Returns the secret by which this rank joins: its own of the file, or the one that rank 0 has told. ConfigError unless
// all ranks have the file, or none.
std::string secret_to_join(const std::string& own, const std::string& told);

// The ranks of a generation find each other by these functions. Each connects this rank's control plane, enters that
// generation (Membership::enter()), and returns once all its ranks have connected. They block, at most for the timeout
// in the options, and throw CommError; ConfigError if a host cannot connect to itself (check_loopback()).

// A world of one rank.
void connect_alone(Membership& membership, comm::ControlOptions options);

// Ranks of one host. Rank 0 writes its address and a fresh secret into `file`, which is removed once all
// have connected. `hint`: await_contact().
void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file,
                     const std::function<std::string()>& hint = {});

// MPI carries rank 0's address. If `options` has no secret, MPI carries one as well, unencrypted like all of its
// traffic. `network_interface`: the one that rank 0 listens on if there are several hosts; empty: the one with the
// default route.
void connect_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface);

// Ranks of several hosts that neither MPI nor a launcher connects (master_address.cpp): PyTorch's TCPStore at
// MASTER_ADDR carries rank 0's address and a secret, unencrypted, until all have connected. Waits until the name
// resolves and rank 0 answers, and says so in the log.
void connect_by_store(Membership& membership, comm::ControlOptions options, const RankEnvironment& environment);

// The folder of a run whose ranks torchrun starts again: rank 0 of an attempt writes it into the store of torchrun's
// agent, which outlives the ranks, and rank 0 of a later attempt finds it there. Empty: it is not there. CommError if
// the store does not answer within some seconds.
void remember_folder(const MasterAddress& agent, const std::filesystem::path& run_dir);
std::filesystem::path remembered_folder(const MasterAddress& agent);

// Returns what is to be set if the address of rank 0 is none of this host's; empty: it is. May wait for the resolver.
std::string hint_of_other_host(const MasterAddress& master);

// Waiting for a host of the run that has no name or no listener yet: pods start in any order, and the name of one
// resolves only once it runs. Blocks; any thread.

// The addresses of a host's name, as the resolver orders them; `why` is the reason if there are none.
struct Resolved {
  std::vector<std::string> addresses;
  std::string why;
};
Resolved resolve(const std::string& name);

struct HostWait {
  std::string name;  // of the host, or its address
  std::uint16_t port = 0;
  std::chrono::milliseconds timeout{600'000};
  std::chrono::milliseconds answer{2'000};  // of a host to a connection
  std::string waiter;                       // "rank 3": for the log and for errors
  Logger log;                               // gets a line after 2 s, and then every 15 s
};

// Waits until the name resolves and something listens there. Returns its address. CommError at the deadline says
// whether the name does not resolve, or which error the connection gives.
std::string await_listener(const HostWait& wait);

// Looks once. Empty: nothing listens there, and `why` says so.
std::string find_listener(const HostWait& wait, std::string& why);

// Waits until the name resolves to an address of this machine, and returns the address. CommError at the deadline.
std::string await_own_address(const HostWait& wait);

// On rank 0's host: the address at which the store listens, and the one at which the control plane does. `interface` is
// DTRAIN_NETWORK_INTERFACE; empty: the address that the name means here. ConfigError as host::reachable_address().
std::string master_address_here(const std::string& interface, const HostWait& wait);
std::string control_address_here(const std::string& interface, const HostWait& wait);

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
