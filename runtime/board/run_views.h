// What the board tells of one run, as JSON. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::board {

// Attempts, checkpoints, what the run was started with, and which files it has.
Json describe_run(const rank::RunFolder& folder, const Clock& clock);

// The learning curves, all attempts joined: at most kMostCurvePoints points each, which keep the extremes.
Json curves_of_run(const rank::RunFolder& folder, const Clock& clock);

// Lines of a log. `rank` -1: the launcher's. `from`: the byte to go on from; negative: the end of the file. Whole
// lines, 256 KiB at most, printable: {lines, next, size}. ConfigError: there is no such log.
Json log_lines_of(const rank::RunFolder& folder, int rank, std::int64_t from);

// The state of runs right now, each of which is read on by whoever asks for it. Runs that nobody asks for are
// forgotten.
class LiveViews {
 public:
  explicit LiveViews(const Clock& clock) : clock_(clock) {}
  Json view(const rank::RunFolder& folder);

 private:
  struct Item {
    std::mutex mutex;
    std::unique_ptr<analysis::LiveRun> run;
    std::chrono::steady_clock::time_point asked{};
  };
  const Clock& clock_;
  std::mutex mutex_;
  std::map<std::filesystem::path, std::shared_ptr<Item>> items_;
};

// What `dtrain analyze --json` says of a run. A process of its own reads the records, whose memory is then free again;
// one at a time. An answer holds until the records have changed and reading them again costs little of the time.
class Analyses {
 public:
  // Error: the analysis has failed, with what it printed.
  std::string analysis(const rank::RunFolder& folder);

 private:
  struct Item {
    std::string text;
    std::int64_t signature = 0;
    std::chrono::steady_clock::time_point next{};
  };
  std::mutex running_;  // held while a process reads
  std::mutex mutex_;
  std::map<std::filesystem::path, Item> items_;
};

}  // namespace dtrain::board
