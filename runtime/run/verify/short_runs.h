// The short runs that a run's predictions are verified with: what has to be launched, and launching it. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/run/mock.h"
#include "dtrain/run/run_folder.h"
#include "launch/launch_signals.h"

namespace dtrain::run {

// `dtrain launch` with what makes a run of `steps` batches of RUN's experiment, without --run-dir and --mock. What RUN
// found out at its start is given: a short run would spend half its steps on it, and a mock run cannot. ConfigError
// where RUN is no run of `dtrain launch`, is a mock run itself, or its experiment file is gone or another by now.
std::vector<std::string> short_launch(const RunFolder& run, const analysis::RunProfile& profile, int steps,
                                      const std::filesystem::path& cluster);

// RUN/what-if/N, new.
std::filesystem::path make_what_if_folder(const RunFolder& run);

class ShortRuns {
 public:
  ShortRuns(std::vector<std::string> launch, std::filesystem::path folder);

  // Launches one under folder/NAME and waits for its end; its output is NAME.out and NAME.err
  // beside it. An Error where it fails (a
  // ConfigError where it is refused). False: a signal came, which was handed on, and it has ended.
  bool run(const std::string& name, const Mock& mock);

 private:
  const std::vector<std::string> launch_;
  const std::filesystem::path folder_;
  LaunchSignals signals_;
};

}  // namespace dtrain::run
