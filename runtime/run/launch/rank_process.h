// The launcher's view of one rank: its process, its end of the link, and its messages. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/run/rank_session.h"
#include "environment.h"
#include "link/launcher_link.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

class RankProcess {
 public:
  // Its output goes to `log`. SystemError when the program cannot be started.
  static RankProcess start(const LaunchPlan& plan, const RankPlacement& placement, Handover handover,
                           const std::filesystem::path& log, const Variables& variables);

  int rank() const { return rank_; }
  Process& process() { return process_; }
  const Process& process() const { return process_; }
  int link_fd() const { return link_.fd(); }

  // Reads the rank's messages. Stores the newest progress in `progress`.
  void read_link(std::optional<Progress>* progress);
  // True once the process has ended.
  bool reap();
  const std::optional<ExitStatus>& status() const { return status_; }
  const std::optional<ErrorMessage>& error() const { return error_; }
  bool joined() const { return joined_; }      // has connected to the other ranks of this run
  bool finished() const { return finished_; }  // has trained to the end, or stopped as requested

 private:
  RankProcess(int rank, Process process, UnixSocket link)
      : rank_(rank), process_(std::move(process)), link_(std::move(link)) {}
  int rank_;
  Process process_;
  UnixSocket link_;
  bool joined_ = false;
  bool finished_ = false;
  std::optional<ErrorMessage> error_;
  std::optional<ExitStatus> status_;
};

}  // namespace dtrain::run
