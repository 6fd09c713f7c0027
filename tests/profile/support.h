// What the tests of the profile share: a clock set by hand, child processes, a monitor with its folder.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "../harness/eventually.h"
#include "../harness/json_records.h"
#include "../harness/temporary_folder.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/monitor_process.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::profile {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

inline constexpr auto kDeadline = 30s;  // against hangs alone

class ManualClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now + 1'000'000s; }
  Nanoseconds now{1'000};
};

inline std::vector<Json> read_dump(const fs::path& path) {
  EXPECT_TRUE(fs::exists(path)) << path;
  return read_lines(path);
}

// Runs `body` in a forked child, which then ends without running anything of the test program.
inline pid_t fork_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      code = 1;
    }
    ::_exit(code);
  }
  return child;
}

inline int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// A run's folder, and options for a monitor and ranks in it.
struct TestRun {
  TestRun() {
    fs::create_directories(profile());
    fs::create_directories(folder.path() / "logs");
  }
  fs::path profile() const { return folder.path() / "profile"; }
  fs::path rank_dump(int rank) const {
    char name[32];
    std::snprintf(name, sizeof name, "rank-%04d.jsonl", rank);
    return profile() / name;
  }
  fs::path monitor_dump() const { return profile() / "agent-host1.jsonl"; }
  MonitorOptions monitor_options(std::vector<int> ranks) const {
    MonitorOptions options;
    options.agent_id = "host1";
    options.profile_folder = profile();
    options.local_ranks = std::move(ranks);
    options.header = {{"run", "0007"}};
    return options;
  }
  static Recorder::Options rank_options(const MonitorProcess& monitor, int rank, int world_size = 1) {
    Recorder::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.monitor_socket = monitor.socket;
    options.header = {{"versions", {{"dtrain", "0.1.0"}}}};
    return options;
  }
  TemporaryFolder folder;
};

inline std::int64_t sum_of_top_level(const Json& phases) {
  std::int64_t sum = 0;
  for (const auto& [name, value] : phases.items()) {
    if (name.find('.') == std::string::npos) sum += value.get<std::int64_t>();
  }
  return sum;
}

}  // namespace dtrain::profile
