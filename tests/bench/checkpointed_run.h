// Our side of bench_checkpoint: a launch of bench_step_trial on two ranks that takes checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {

// depth Linear layers of width x width with ReLU between them.
struct CheckpointedModel {
  int width = 2048;
  int depth = 8;
  int batch = 32;  // of a rank
  // Of parameters and AdamW's two moments.
  std::size_t state_bytes() const {
    const auto wide = static_cast<std::size_t>(width);
    return 3 * sizeof(float) * static_cast<std::size_t>(depth) * (wide * wide + wide);
  }
};

class CheckpointedRun {
 public:
  // Launches it; everything it writes lies in the new folder `folder`. A checkpoint every `period` steps.
  CheckpointedRun(const CheckpointedModel& model, const std::filesystem::path& folder, int period);

  std::vector<std::int64_t> steps(int steps) { return ranks_.steps(steps); }
  std::vector<Json> events(const std::string& name) const;
  // When the checkpoint of this batch became one, by the wall clock; empty: it is not there.
  std::optional<Nanoseconds> renamed_at(std::int64_t batch) const;
  // How long the training thread of each rank has so far been ready to run while another process had its core.
  std::vector<Nanoseconds> displaced() const;
  void show_log() const { bench::show_log(folder_ / "log"); }

  // From SIGTERM to the launcher until it has ended, in seconds. Error unless its exit code is 75 and the newest
  // checkpoint is the one of the stop and verifies. While it trains and no checkpoint is being written:
  double stop_in_training();
  // While a checkpoint is being written:
  double stop_while_saving();

 private:
  double stop();

  std::filesystem::path folder_;
  Contestant ranks_;
  UniqueFd log_;
  std::optional<Process> launcher_;
};

}  // namespace dtrain::bench
