// The processes that show a launched run in the trackers that its experiment names (`tracking`). They read the run's
// folder and share nothing with the ranks. A destructor leaves them running. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "dtrain/config/tracking.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/run_folder.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

// ConfigError if a tracker's library is missing in the Python that would show the run, or there is no Python.
void check_trackers(const LaunchPlan& plan, const rank::Variables& variables);

class Followers {
 public:
  // Starts one for each tracker; none for a run that leaves work out (--mock) or that another launch measures.
  Followers(const LaunchPlan& plan, const rank::RunFolder& folder, const rank::Variables& variables);
  ~Followers();
  Followers& operator=(Followers&&) = delete;

  // After the last event of the run: starts those that a signal has ended once more, waits a while for all to send what
  // is left, and returns rows for the screen.
  std::string finish();

 private:
  struct Follower {
    config::Tracker tracker;
    std::filesystem::path log;
    std::optional<Process> process;  // empty: it could not be started
  };
  void start(Follower& follower) const;
  std::string row_of(const Follower& follower, const std::optional<ExitStatus>& ended) const;

  rank::RunFolder folder_;
  rank::Variables variables_;
  std::vector<Follower> followers_;
};

}  // namespace dtrain::launcher
