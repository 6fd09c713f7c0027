// What the board tells of one run, as JSON. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::board {

// What the list of runs has of a run.
struct KnownLine {
  Json line;
  analysis::Settings settings;
};

// Attempts, checkpoints, what the run was started with, and which files it has. `known`: empty: its files are read.
Json describe_run(const rank::RunFolder& folder, const std::optional<KnownLine>& known, const Clock& clock);

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

// Texts that are made of the files of runs, one at a time. A text holds until the files have changed, and until making
// it again costs little of the time. Any thread.
class KeptTexts {
 public:
  // `most`: how many are kept.
  explicit KeptTexts(std::size_t most) : most_(most) {}
  // `signature`: of the files. What `make` throws is passed on.
  std::string get(const std::filesystem::path& run, std::int64_t signature, const std::function<std::string()>& make);

 private:
  struct Item {
    std::string text;
    std::int64_t signature = 0;
    std::chrono::steady_clock::time_point next{}, asked{};
  };
  const std::size_t most_;
  std::mutex making_;
  std::mutex mutex_;
  std::map<std::filesystem::path, Item> items_;
};

// What `dtrain analyze --json` says of a run. A process of its own reads the records, whose memory is then free again.
class Analyses {
 public:
  // {"error"}: the analysis has failed, with what it printed.
  std::string analysis(const rank::RunFolder& folder);

 private:
  KeptTexts kept_{8};
};

// The learning curves, all attempts joined: at most kMostCurvePoints points each, which keep the extremes.
class CurveViews {
 public:
  explicit CurveViews(const Clock& clock) : clock_(clock) {}
  std::string curves(const rank::RunFolder& folder);

 private:
  const Clock& clock_;
  KeptTexts kept_{24};
};

}  // namespace dtrain::board
