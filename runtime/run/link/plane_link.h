// The link of a rank that mpirun or srun has started for `dtrain launch`: a control plane of its own, whose rank 0 is
// the launcher and whose rank n + 1 is rank n of the run. What is sent: progress and states as keys, an error as the
// plane's failure, with the message as its cause; the launcher asks the ranks to stop by a failure of its own
// (rank_plane.h is its side). Threads as in launcher_link.h.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "environment.h"
#include "link/launcher_link.h"

namespace dtrain::run {

// What the launcher tells every such rank once it is connected.
struct LaunchOrders {
  std::filesystem::path run_dir;
  std::string token;                // what run_dir/launch/token holds where this is the launcher's own folder
  std::vector<std::string> agents;  // the agent of each rank
  std::string plan;                 // the contents of plan.json and experiment.yaml, for hosts that do not see them
  std::string experiment;
};
Json to_json(const LaunchOrders& orders);
LaunchOrders orders_of(const Json& json);  // Json::exception where it is something else
// With thousands of ranks they are longer than a message may be: the plane holds them in parts, and under
// plane_key::kOrders how many there are.
void put_orders(comm::ControlPlane& plane, const LaunchOrders& orders);

// What a host tells the launcher: its first rank does.
struct HostReport {
  std::string host;
  bool has_folder = true;  // the launcher's; otherwise it has made one of its own under the same path
  std::int64_t agent_pid = 0;
};
Json to_json(const HostReport& report);
HostReport host_report_of(const Json& json);

class PlaneLink final : public LauncherLink {
 public:
  // CommError when the launcher cannot be reached, ConfigError when it is of another version.
  PlaneLink(const LauncherContact& launcher, const comm::World& world, const std::string& host_name, const Logger& log);

  const LaunchOrders& orders() const { return orders_; }
  void report_host(const HostReport& report);
  // This rank goes into MPI_Init now; whether another one has said so.
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

// The keys of that plane, and what they hold.
namespace plane_key {
inline constexpr const char* kOrders = "orders";
inline constexpr const char* kProgress = "progress";
std::string orders_part(int part);
std::string state(int rank);
std::string host(const std::string& agent);
std::string entered_mpi(int rank);
}  // namespace plane_key

// The plane's options, the same on both sides; `member` is 0 for the launcher.
comm::ControlOptions plane_options(const std::string& secret, int member, int ranks, const std::string& host_name,
                                   const Logger& log);

}  // namespace dtrain::run
