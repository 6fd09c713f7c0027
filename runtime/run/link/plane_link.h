// The link of a rank that mpirun or srun starts for `dtrain launch`: a control plane of its own. The launcher is its
// rank 0, and rank n of the run is its rank n + 1. Progress and states are keys. An error is a failure of the plane,
// with the message as its cause. The launcher asks the ranks to stop by a failure of its own (rank_plane.h is its
// side). Threads as in launcher_link.h.
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

// What the launcher sends to each of these ranks once it is connected.
struct LaunchOrders {
  std::filesystem::path run_dir;
  std::string token;                // the content of run_dir/launch/token in the launcher's own folder
  std::vector<std::string> agents;  // the agent of each rank, in rank order
  std::string plan;                 // the contents of plan.json and experiment.yaml, for hosts that do not see them
  std::string experiment;
  std::filesystem::path resume_from;  // as in Handover
};
Json to_json(const LaunchOrders& orders);
LaunchOrders orders_of(const Json& json);  // Json::exception if it is malformed
// With thousands of ranks the orders are longer than a message may be. The plane holds them in parts, and the number of
// parts under plane_key::kOrders.
void put_orders(comm::ControlPlane& plane, const LaunchOrders& orders);

// What the first rank of each host reports to the launcher.
struct HostReport {
  std::string host;
  bool has_folder = true;  // sees the launcher's folder; false: it has made its own under the same path
  std::int64_t agent_pid = 0;
};
Json to_json(const HostReport& report);
HostReport host_report_of(const Json& json);

class PlaneLink final : public LauncherLink {
 public:
  // CommError if the launcher cannot be reached. ConfigError if its version or its number of ranks differs.
  PlaneLink(const LauncherContact& launcher, const comm::World& world, const std::string& host_name, const Logger& log);

  const LaunchOrders& orders() const { return orders_; }
  void report_host(const HostReport& report);
  // enter_mpi() publishes that this rank is about to enter MPI_Init; has_entered_mpi() looks for that of another rank.
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
std::string orders_part(int part);
std::string state(int rank);
std::string host(const std::string& agent);
std::string entered_mpi(int rank);
}  // namespace plane_key

// The options of the plane, the same on both sides. `member` is the rank on the plane: 0 for the launcher.
comm::ControlOptions plane_options(const std::string& secret, int member, int ranks, const std::string& host_name,
                                   const Logger& log);

}  // namespace dtrain::run
