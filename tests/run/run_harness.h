// Starts dtrain and rank programs for real, in a folder of their own, and looks at what they leave behind.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "../harness/eventually.h"
#include "../harness/json_records.h"
#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"

namespace dtrain {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

inline constexpr auto kHangs = 60s;  // against hangs alone

inline std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string bin(const std::string& name) {
  return std::string(DTRAIN_BINARY_DIR) + "/bin/" + name;
}
inline std::string rank_program() {
  return std::string(DTRAIN_BINARY_DIR) + "/tests/rank_program";
}

inline bool is_alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

// A running command whose output goes to files.
class Command {
 public:
  Command(const fs::path& folder, std::vector<std::string> arguments,
          std::map<std::string, std::string> environment = {})
      : out_(folder / "stdout.txt"), err_(folder / "stderr.txt") {
    const UniqueFd out(::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const UniqueFd err(::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ProcessOptions options;
    options.command = std::move(arguments);
    options.environment = std::move(environment);
    options.environment.try_emplace("XDG_RUNTIME_DIR", folder.string());
    options.environment.try_emplace("DTRAIN_STATE_DIR",
                                    (folder / "state").string());  // its launches wait for no others
    options.environment.try_emplace("XDG_CONFIG_HOME", (folder / "config").string());
    options.environment.try_emplace("DTRAIN_CALIBRATION", "false");  // it takes seconds
    // What the tests themselves were started with must not make ranks of these.
    options.unset = {"RANK",          "WORLD_SIZE",      "LOCAL_RANK",   "LOCAL_WORLD_SIZE",
                     "SLURM_STEP_ID", "OMP_NUM_THREADS", "SLURM_JOB_ID", "DTRAIN_CLUSTER"};
    options.fds = {{0, in.get()}, {1, out.get()}, {2, err.get()}};
    options.working_folder = folder;
    process_ = std::make_unique<Process>(Process::start(options));
  }
  Process& process() { return *process_; }
  void kill(int signal) { process_->kill(signal); }
  // Fails the test when it hangs.
  ExitStatus wait() {
    const auto status = process_->wait(kHangs);
    EXPECT_TRUE(status) << "it hangs; so far it said\n" << out() << err();
    return status.value_or(ExitStatus{-1, 0});
  }
  std::string out() const { return slurp(out_); }
  std::string err() const { return slurp(err_); }
  bool says(const std::string& text) const { return out().find(text) != std::string::npos; }

 private:
  fs::path out_;
  fs::path err_;
  std::unique_ptr<Process> process_;
};

struct Settings {
  int slots = 2;
  int batches = 20;
  std::string hyperparameters;  // further lines, YAML in flow style: "step_ms: 5, trouble: {…}"
  std::string more;             // further top-level YAML
  std::string entrypoint = rank_program();
  std::string slot_type = "cpu";  // so that the tests do the same on a machine with GPUs
};

// A rank program that takes some seconds until it is the rank program: what happens meanwhile happens while it starts.
class SlowStart {
 public:
  explicit SlowStart(const std::string& seconds = "2") {
    std::ofstream(path()) << "#!/bin/sh\nsleep " << seconds << "\nexec " << rank_program() << " \"$@\"\n";
    fs::permissions(path(), fs::perms::owner_all);
  }
  std::string path() const { return folder_.path() / "slow_start"; }

 private:
  TemporaryFolder folder_;
};

// A folder with an experiment, and the run in it.
class TestRun {
 public:
  explicit TestRun(const Settings& settings = {}) {
    std::ofstream(experiment()) << "name: test\nentrypoint: " << settings.entrypoint
                                << "\nhyperparameters: {global_batch_size: 8"
                                << (settings.hyperparameters.empty() ? "" : ", " + settings.hyperparameters)
                                << "}\nresources: {slots_per_trial: " << settings.slots
                                << ", slot_type: " << settings.slot_type
                                << "}\nsearcher: {metric: loss, max_length: {batches: " << settings.batches << "}}\n"
                                << settings.more;
    // A test that ends a rank looks at what becomes of this attempt.
    if (settings.more.find("max_restarts:") == std::string::npos) {
      std::ofstream(experiment(), std::ios::app) << "\nmax_restarts: 0\n";
    }
  }
  const fs::path& folder() const { return folder_.path(); }
  fs::path experiment() const { return folder() / "experiment.yaml"; }
  fs::path run_dir() const { return folder() / "run"; }

  Command launch(std::vector<std::string> options = {}) {
    std::vector<std::string> command{bin("dtrain"), "launch", experiment().string(), "--run-dir", run_dir().string()};
    command.insert(command.end(), options.begin(), options.end());
    return Command(folder(), command);
  }

  std::vector<Json> events() const { return read_lines(run_dir() / "events.jsonl"); }
  std::string log(int rank) const { return slurp(run_dir() / "logs" / ("rank-000" + std::to_string(rank) + ".log")); }

  // Every process that belongs to the run.
  std::map<std::string, pid_t> processes() const {
    std::map<std::string, pid_t> result;
    for (const Json& event : events()) {
      const std::string name = event.value("event", "");
      if (name == "run_started") result["launcher"] = event.at("pid").get<pid_t>();
      if (name == "agent_started") result["agent"] = event.at("pid").get<pid_t>();
      if (name == "standby_started") result["standby"] = event.at("pid").get<pid_t>();
      if (name == "rank_started") result["rank " + event.at("rank").dump()] = event.at("pid").get<pid_t>();
    }
    return result;
  }
  pid_t pid_of(const std::string& who) const {
    const auto all = processes();
    return all.contains(who) ? all.at(who) : -1;
  }
  // Waits for rank 0 and rank 1 to be in the middle of it.
  bool reached(int rank, int batch) const {
    return eventually([&] { return log(rank).find("batch " + std::to_string(batch) + "\n") != std::string::npos; });
  }

  // Nothing of the run is left: no process (its memory, which has no name, goes with it), no file outside its folder.
  void expect_nothing_left() const {
    for (const auto& [who, pid] : processes()) {
      EXPECT_TRUE(eventually([pid = pid] { return !is_alive(pid); })) << who << " (pid " << pid << ") is still there";
    }
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(folder() / "dtrain", code)) {
      ADD_FAILURE() << entry.path() << " was left";
    }
  }

  // The step records of a rank hold every batch it said it had done, without a gap.
  void expect_dump_complete(int rank) const {
    std::set<std::int64_t> recorded;
    for (const Json& line : read_lines(run_dir() / "profile" / ("rank-000" + std::to_string(rank) + ".jsonl"))) {
      if (line.value("record", "") == "step") {
        recorded.insert(line.at("batch").get<std::int64_t>());
      }
    }
    std::int64_t said = 0;
    std::istringstream stream(log(rank));
    for (std::string line; std::getline(stream, line);) {
      long long batch = 0;
      if (std::sscanf(line.c_str(), "batch %lld", &batch) == 1) said = batch;
    }
    for (std::int64_t batch = 1; batch <= said; ++batch) {
      EXPECT_TRUE(recorded.contains(batch)) << "rank " << rank << " has no record of batch " << batch;
    }
    EXPECT_LE(recorded.empty() ? 0 : *recorded.rbegin(), said + 1) << "rank " << rank;
  }

 private:
  TemporaryFolder folder_;
};

// How often `part` is in `text`.
inline int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace dtrain
