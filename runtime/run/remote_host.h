// Commands on the other hosts of a run, over the remote shell that mpirun uses there (ssh): asking what is wrong with
// them, and collecting what they have written. They block, for a bounded time; one thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/run/run_folder.h"
#include "launch_plan.h"
#include "outcome.h"
#include "plane_link.h"

namespace dtrain::run {

class RemoteHosts {
 public:
  explicit RemoteHosts(std::vector<std::string> shell) : shell_(std::move(shell)) {}

  // After a job of which no rank came up: the first host that cannot be reached, or lacks Open MPI, dtrain, the program
  // or the experiment. Nothing: all have all of it.
  std::optional<Failure> find_fault(const LaunchPlan& plan, const std::vector<std::string>& needed_files) const;

  // Brings what a host has written into its own folder into the launcher's, once its agent has ended; then removes it
  // there. Error says what is missing now, and where it still lies.
  void collect(const std::string& host, const HostReport& report, const RunFolder& folder) const;

 private:
  struct Answer {
    bool came = false;  // the shell got there, and the script ended with 0
    std::string said;   // its errors, on one line
  };
  Answer ask(const std::string& host, const std::string& script, int output, std::chrono::milliseconds patience) const;

  std::vector<std::string> shell_;
};

}  // namespace dtrain::run
