// The launcher's side of the links to ranks that mpirun or srun starts for it (plane_link.h). Calls come from one
// thread.
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
  // Listens on that address of this host. CommError when it cannot.
  RankPlane(const std::string& address, const LaunchOrders& orders, const Logger& log);

  // What the ranks find it by.
  const LauncherContact& contact() const { return contact_; }

  // The newest, where there is any that was not taken yet.
  std::optional<Progress> take_progress();
  int joined();         // ranks that came up
  bool all_finished();  // did all they were asked to
  bool finished(int rank) const { return finished_.count(rank) != 0; }
  // The exit code they agreed on: 0, or that of a run which was interrupted.
  int exit_code() const { return exit_code_; }
  std::map<std::string, HostReport> hosts();  // by agent

  // Why the run must end: what the first rank that spoke said. A rank that is gone without a word is told of too: then
  // `rank` is that one, `departure` says so and `cause` is empty.
  std::optional<ErrorMessage> error();
  // Asks every rank to stop after its step.
  void stop(int signal);
  // After all_finished(): lets them go.
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
