// Finds which of two ways to compute a step is faster, and remembers it for later runs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/communicator.h"

namespace dtrain::train {

// Finds which of two ways is faster, in the first steps of the run.
//
// The ways take turns of a few steps, twice each, so that a drift of the machine affects both; the first step of a turn
// does not count. The time of a step is that of its slowest rank. Until the end, the way of a step depends on the
// step's number alone. Training thread; no torch.
class TurnComparison {
 public:
  // `enough`: the second way is chosen if its step takes at most this share of the first way's time.
  TurnComparison(comm::Communicator& communicator, double enough) : communicator_(communicator), enough_(enough) {}

  // True if the next step goes the second way; final when done().
  bool second() const { return second_; }
  bool done() const { return done_; }
  // Called after every optimizer step until done(), with its batch and the time of this rank's window, without the
  // loading of batches. Collective at the end. Returns true if second() has changed.
  bool end_step(std::int64_t batch, double milliseconds);

  // Number of steps that have ended. go_on_after() continues a restored comparison, without times of earlier steps.
  int steps() const { return steps_; }
  void go_on_after(int steps);

  // Medians in milliseconds, valid when done(). 0: no step was measured.
  double first_ms() const { return medians_[0]; }
  double second_ms() const { return medians_[1]; }
  struct Turn {
    bool second = false;
    std::int64_t first_batch = 0, last_batch = 0;
  };
  // The batches of the steps that count; analysis compares the phases of these steps.
  const std::vector<Turn>& turns() const { return turns_; }

  static constexpr int kWarmUpSteps = 2;
  static constexpr int kStepsOfATurn = 5;  // the first does not count
  static constexpr int kTurns = 4;         // first, second, first, second

 private:
  static bool second_at(int steps);
  void decide();

  comm::Communicator& communicator_;
  const double enough_;
  int steps_ = 0;
  bool second_ = false;
  bool done_ = false;
  std::array<std::vector<double>, 2> times_;  // milliseconds of steps of the first way and of the second
  std::array<double, 2> medians_{};
  std::vector<Turn> turns_;
};

// Answers that runs remember for later runs: a small JSON file in the user's cache folder for each question and key,
// which is all that the answer depends on. Any thread; files are replaced whole, so runs may share the folder.
class RunCache {
 public:
  // `folder`: empty: nothing is remembered. `question`: a folder's name, "fusion". `key`: everything that the answer
  // depends on.
  RunCache(const std::filesystem::path& folder, const std::string& question, Json key);

  // Returns the answer that an earlier run stored for the same key; empty: none. A damaged file counts as none and is
  // logged.
  std::optional<Json> find(const Logger& log) const;
  // Returns false if the cache is off or the write fails, which is logged. `answer`: a mapping without "key".
  bool store(Json answer, const Logger& log) const;
  const std::filesystem::path& file() const { return file_; }

 private:
  Json key_;
  std::filesystem::path file_;
};

}  // namespace dtrain::train
