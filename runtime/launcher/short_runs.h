// Short runs of an experiment: their command, and launching them. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/rank/mock.h"
#include "dtrain/rank/stop_requests.h"

namespace dtrain::launcher {

// Makes a launch command train for `steps` batches and do nothing else: no validation, no trace.
void make_short(std::vector<std::string>& command, std::int64_t steps);

class ShortRuns {
 public:
  ShortRuns(std::vector<std::string> launch, std::filesystem::path folder);

  // Launches a run in folder/NAME, with one more --set unless it is empty, and waits for its end. Its output is in
  // NAME.out and NAME.err beside that folder. Error if the run fails (ConfigError if it is refused). False: a signal
  // arrived; it was passed on, and the run has ended.
  bool run(const std::string& name, const rank::Mock& mock, const std::string& set = {});
  // Does the same with these options. `has_enough`, if there is one, is called a few times a second: once it returns
  // true, the ranks are killed, and the run counts as done. A signal kills them as well.
  bool run(const std::string& name, const std::vector<std::string>& options,
           const std::function<bool()>& has_enough = {});

 private:
  const std::vector<std::string> launch_;
  const std::filesystem::path folder_;
  rank::LaunchSignals signals_;
};

}  // namespace dtrain::launcher
