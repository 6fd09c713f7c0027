// Commands on the other hosts of a run, over the remote shell that mpirun uses (ssh): they find the fault of a host,
// hand out the secret, and collect the host's files. They block for a bounded time; one thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rank/plane_link.h"
#include "dtrain/rank/run_folder.h"
#include "launch/attempts.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

class RemoteHosts {
 public:
  explicit RemoteHosts(std::vector<std::string> shell) : shell_(std::move(shell)) {}

  // After a job in which no rank joined: names the first host that cannot be reached, or that lacks Open MPI, dtrain,
  // the program or the experiment file. Empty: no host lacks any of them.
  std::optional<Failure> find_fault(const LaunchPlan& plan, const std::vector<std::string>& needed_files) const;

  // Writes a file that only the user can read on every host of the plan except this one. The text goes over the shell's
  // standard input, so that it is in no command line and no variable. Returns one line for each host that failed.
  std::vector<std::string> hand_out(const LaunchPlan& plan, const std::filesystem::path& file,
                                    const std::string& text) const;
  // Removes that file from the hosts.
  void take_back(const LaunchPlan& plan, const std::filesystem::path& file) const;

  // Moves the files of a host's own folder to the launcher's folder, once the host's profiling agent has ended. The
  // files belong to the launching user, without special modes, and none is written outside the folder. Error names the
  // missing files and where they still are. Returns the files left out of a successful collection; usually none.
  std::string collect(const std::string& host, const HostReport& report, const RunFolder& folder) const;

 private:
  struct Answer {
    bool came = false;  // the script ran there and returned 0
    std::string said;   // its standard error, on one line
  };
  Answer ask(const std::string& host, const std::string& script, int output, std::chrono::milliseconds patience,
             const std::string& input = {}) const;
  // Runs the script on every host of the plan except this one, several at a time.
  std::vector<std::pair<std::string, Answer>> ask_all(const LaunchPlan& plan, const std::string& script,
                                                      const std::string& input) const;

  std::vector<std::string> shell_;
};

}  // namespace dtrain::run
