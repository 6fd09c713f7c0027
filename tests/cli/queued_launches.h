// Launches on a cluster of two slots, which share one ledger, and the commands about their tasks.
#pragma once

#include <fstream>

#include "cli_harness.h"

namespace dtrain {

class QueuedLaunches : public testing::Test {
 protected:
  // `scheduler`: further lines of the cluster file.
  explicit QueuedLaunches(const Settings& run, const std::string& scheduler = "") : run_(run) {
    write_cluster(scheduler);
  }
  void write_cluster(const std::string& scheduler) {
    std::ofstream(run_.folder() / "cluster.yaml") << "agents: [{id: here, host: localhost, slots: 2, slot_type: cpu}]\n"
                                                  << scheduler;
  }

  // Of the launches, numbered from 1: each has a folder of its own, where it also writes its run.
  fs::path folder(std::size_t number) const { return run_.folder() / ("launch-" + std::to_string(number)); }
  Command& launch(const std::vector<std::string>& options = {}) {
    const fs::path own = folder(launches_.size() + 1);
    fs::create_directory(own);
    std::vector<std::string> command{
        bin("dtrain"), "launch",   run_.experiment(), "--cluster", run_.folder() / "cluster.yaml",
        "--run-dir",   own / "run"};
    command.insert(command.end(), options.begin(), options.end());
    launches_.push_back(std::make_unique<Command>(own, command, environment()));
    return *launches_.back();
  }

  std::map<std::string, std::string> environment() const {
    return {{"DTRAIN_STATE_DIR", run_.folder() / "state"}, {"XDG_RUNTIME_DIR", run_.folder()}};
  }
  Result task(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "task");
    return dtrain(run_, arguments, environment());
  }
  Json show(int id) { return Json::parse(task({"show", std::to_string(id), "--json"}).out); }

  TestRun run_;
  std::vector<std::unique_ptr<Command>> launches_;
};

}  // namespace dtrain
