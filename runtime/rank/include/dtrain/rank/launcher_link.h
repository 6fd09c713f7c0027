// A rank's connection to its launcher. The rank reports states, progress and errors. Callbacks report that the launcher
// is gone or asks the rank to stop; they run on a thread of the link. send() may be called from any thread. A child of
// the launcher has a socket pair (SocketLink): the stream ends with the launcher, and signals ask for a stop, or a
// byte of its keeper. Ranks
// that mpirun or srun starts have a control plane (PlaneLink).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

// The messages of the link, each with a "type". The launcher ignores those it cannot read.
Json state_message(const std::string& state, ExitCode exit_code = ExitCode::kDone);  // "started", "finished"
Json progress_message(const Progress& progress);
Json pulse_message();                          // with the file descriptor
Json memory_message(const std::string& name);  // the same
// Of a host's first rank to its keeper. `step`: rank 0 goes on after so many batches.
Json folder_message(const std::filesystem::path& run_dir, std::int64_t step);
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

// What a keeper sends to its ranks so that they stop after their step, for it to start them again.
inline constexpr char kPause = 'p';

class LauncherLink {
 public:
  virtual ~LauncherLink() = default;
  // Calls `gone` once, when the launcher is gone. Calls `stop` once, when the launcher asks the ranks to stop after
  // their step, with the signal that it received; 0: a keeper has received none, and starts the ranks again.
  virtual void watch(std::function<void()> gone, std::function<void(int signal)> stop) = 0;
  // True if the launcher is gone now. The watching thread may not have reported it yet.
  virtual bool is_gone() const = 0;
  // False if the launcher is gone or does not read in time. `droppable`: do not wait for it, because it may be stopped.
  virtual bool send(const Json& message, bool droppable = false) = 0;
  // Passes on a copy of the file descriptor of this process's pulse (dtrain/base/pulse.h), where the launcher is on
  // this host.
  virtual void share_pulse(int /*fd*/) {}
  // The same with memory that the launcher keeps for the ranks of the next attempts.
  virtual void keep_memory(const std::string& /*name*/, int /*fd*/) {}
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
  void share_pulse(int fd) override;
  void keep_memory(const std::string& name, int fd) override;
  void leave() override {}

 private:
  UniqueFd fd_;
  UniqueFd stop_;  // eventfd: ends the thread
  std::thread thread_;
};

// The link of a rank that mpirun or srun starts for `dtrain launch`: a control plane of its own. The launcher is its
// rank 0, and rank n of the run is its rank n + 1. Progress and states are keys. An error is a failure of the plane,
// with the message as its cause. The launcher asks the ranks to stop by a failure of its own. Threads as in
// launcher_link.h.

// The orders that the launcher sends to each of these ranks once the rank is connected.
struct LaunchOrders {
  std::filesystem::path run_dir;
  std::string token;                // the content of run_dir/launch/token in the launcher's own folder
  std::vector<std::string> agents;  // the agent of each rank, in rank order
  std::string plan;                 // the contents of plan.json and experiment.yaml, for hosts that do not see them
  std::string experiment;
  std::filesystem::path resume_from;  // as in Handover
  std::int64_t resume_step = 0;       // the batches that are done there
  bool keeps_states = false;          // in memory, on each host
  checkpoints::Lineage lineage;       // of the attempt before

  // The number of the rank's host among those of the run.
  int host_of(int rank) const;
};
Json to_json(const LaunchOrders& orders);
LaunchOrders orders_of(const Json& json);  // Json::exception if it is malformed
// With thousands of ranks the orders are longer than a message may be. The plane holds them in parts, and the number of
// parts under plane_key::kOrders.
void put_orders(comm::ControlPlane& plane, const LaunchOrders& orders);

// What rank 0 tells the launcher of the states in memory: the attempt that it has begun, and from where.
Json memory_choice_message(const checkpoints::Lineage& lineage, std::int64_t step);

// The report of each host's first rank to the launcher.
struct HostReport {
  std::string host;
  bool has_folder = true;  // sees the launcher's folder; false: it has made its own under the same path
  std::int64_t monitor_pid = 0;
};
Json to_json(const HostReport& report);
HostReport host_report_of(const Json& json);

class PlaneLink final : public LauncherLink {
 public:
  // CommError if the launcher cannot be reached. ConfigError if its version or its number of ranks differs.
  PlaneLink(const LauncherContact& launcher, const comm::World& world, const std::string& host_name, const Logger& log);

  const LaunchOrders& orders() const { return orders_; }
  void report_host(const HostReport& report);
  // enter_mpi() publishes that this rank is about to enter MPI_Init; has_entered_mpi() is true if `rank` has done so.
  void enter_mpi();
  bool has_entered_mpi(int rank);

  void watch(std::function<void()> gone, std::function<void(int signal)> stop) override;
  bool is_gone() const override;
  bool send(const Json& message, bool droppable = false) override;
  void leave() override;

 private:
  int rank_;
  LaunchOrders orders_;
  std::unique_ptr<comm::ControlPlane> plane_;
};

// The keys of that plane.
namespace plane_key {
inline constexpr const char* kOrders = "orders";
inline constexpr const char* kProgress = "progress";
inline constexpr const char* kMemory = "memory";
std::string orders_part(int part);
std::string state(int rank);
std::string host(const std::string& agent);
std::string entered_mpi(int rank);
}  // namespace plane_key

// Returns the options of the plane, the same on both sides. `member` is the rank on the plane: 0 for the launcher.
comm::ControlOptions plane_options(const std::string& secret, int member, int ranks, const std::string& host_name,
                                   const Logger& log);

}  // namespace dtrain::rank
