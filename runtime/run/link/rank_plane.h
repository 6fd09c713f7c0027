// The launcher's side of the links to ranks that mpirun or srun starts (plane_link.h). One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/run/rank_session.h"
#include "environment.h"
#include "link/launcher_link.h"
#include "link/plane_link.h"

namespace dtrain::run {

class RankPlane {
 public:
  // Listens on that address of this host. CommError if it cannot.
  RankPlane(const std::string& address, const LaunchOrders& orders, const Logger& log);

  // How the ranks reach it.
  const LauncherContact& contact() const { return contact_; }

  // The newest progress; empty if there was none since the last call.
  std::optional<Progress> take_progress();
  int joined();         // number of ranks that have joined
  bool all_finished();  // trained to the end, or stopped as requested
  bool finished(int rank) const { return finished_.count(rank) != 0; }
  // The highest exit code of the ranks that have finished: not 0 if the run was stopped.
  int exit_code() const { return exit_code_; }
  std::map<std::string, HostReport> hosts();  // by agent

  // Why the run must end: the first error that a rank reported. If a rank is gone without a report, `rank` names it,
  // `departure` is how it left, and `cause` is empty.
  std::optional<ErrorMessage> error();
  // Asks every rank to stop after its step.
  void stop(int signal);
  // After all_finished(): ends the plane in good order, so that the ranks may end.
  void finish();

 private:
  std::optional<std::string> look(const std::string& key);
  void read_states();

  int ranks_;
  LaunchOrders orders_;
  LauncherContact contact_;
  std::unique_ptr<comm::ControlPlane> plane_;
  std::string last_progress_;
  std::map<int, bool> joined_;
  std::map<int, bool> finished_;
  int exit_code_ = 0;
  bool stopping_ = false;
};

}  // namespace dtrain::run
