// The short runs that verify the predictions for a run: their command, and launching them. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/run/mock.h"
#include "dtrain/run/run_folder.h"
#include "stop/launch_signals.h"

namespace dtrain::run {

// The `dtrain launch` command for `steps` batches of RUN's experiment, without --run-dir and --mock. It sets what RUN
// chose at its start: a short run would spend half its batches on that, and a mock run cannot choose. ConfigError if
// RUN was not started by `dtrain launch`, is a mock run, or its experiment file is gone or has changed.
std::vector<std::string> short_launch(const RunFolder& run, const analysis::RunProfile& profile, int steps,
                                      const std::filesystem::path& cluster);

// Makes RUN/what-if/N.
std::filesystem::path make_what_if_folder(const RunFolder& run);

class ShortRuns {
 public:
  ShortRuns(std::vector<std::string> launch, std::filesystem::path folder);

  // Launches a run in folder/NAME, with one more --set unless it is empty, and waits for its end. Its output is in
  // NAME.out and NAME.err beside that folder. Error if the run fails (ConfigError if it is refused). False: a signal
  // arrived; it was passed on, and the run has ended.
  bool run(const std::string& name, const Mock& mock, const std::string& set = {});

 private:
  const std::vector<std::string> launch_;
  const std::filesystem::path folder_;
  LaunchSignals signals_;
};

}  // namespace dtrain::run
