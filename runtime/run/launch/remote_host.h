// Commands on the other hosts of a run, over the remote shell that mpirun uses there (ssh): asking what is wrong with
// them, and collecting what they have written. They block, for a bounded time; one thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/run/run_folder.h"
#include "launch/outcome.h"
#include "link/plane_link.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

class RemoteHosts {
 public:
  explicit RemoteHosts(std::vector<std::string> shell) : shell_(std::move(shell)) {}

  // After a job of which no rank came up: the first host that cannot be reached, or lacks Open MPI, dtrain, the program
  // or the experiment. Nothing: all have all of it.
  std::optional<Failure> find_fault(const LaunchPlan& plan, const std::vector<std::string>& needed_files) const;

  // Puts a file that the user alone can read on every host of the plan but this one, over the shell's standard input:
  // neither command lines nor variables have the text. Returns what went wrong, a line a host; mostly nothing.
  std::vector<std::string> hand_out(const LaunchPlan& plan, const std::filesystem::path& file,
                                    const std::string& text) const;
  // Removes it there, where it still is.
  void take_back(const LaunchPlan& plan, const std::filesystem::path& file) const;

  // Brings what a host has written into its own folder into the launcher's, once its agent has ended; then removes it
  // there. Files come as the launching user's own, without special modes, and nothing is written outside the folder.
  // Error says what is missing now, and where it still lies. Returns what is missing though all went well; mostly
  // nothing.
  std::string collect(const std::string& host, const HostReport& report, const RunFolder& folder) const;

 private:
  struct Answer {
    bool came = false;  // the shell got there, and the script ended with 0
    std::string said;   // its errors, on one line
  };
  Answer ask(const std::string& host, const std::string& script, int output, std::chrono::milliseconds patience,
             const std::string& input = {}) const;
  // Of every host of the plan but this one, several at a time.
  std::vector<std::pair<std::string, Answer>> ask_all(const LaunchPlan& plan, const std::string& script,
                                                      const std::string& input) const;

  std::vector<std::string> shell_;
};

}  // namespace dtrain::run
