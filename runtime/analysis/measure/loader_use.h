// Where the time of a run's loaders goes: on cores, waiting for one, or waiting for storage. From what workers
// recorded.
#pragma once

#include <optional>
#include <string>

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// Of one rank, or of several together.
struct LoaderUse {
  double read_s = 0;    // that workers read, added up
  double waited_s = 0;  // that the training waited for batches
  double steps_s = 0;   // … of so long
  double workers = 0;   // of a rank, mean over batches
  LoaderUsage usage;

  double cpu_share() const;      // of read_s: on a core
  double no_core_share() const;  // ready to run, without a core
  double storage_share() const;  // the rest: waiting for storage or locks
  // Bytes of a request, of those that came from storage. Empty: (almost) nothing came from there.
  std::optional<double> bytes_of_request() const;
};

// `rank`: -1: all of the run. Empty: nothing was recorded.
std::optional<LoaderUse> loader_use(const RunProfile& run, int rank = -1);

// Where the number of loader workers, and other settings of loaders, are set: "data.workers" in an experiment with a
// model, "LoaderSettings::workers" in a program.
bool has_data_keys(const RunProfile& run);
std::string loader_setting(const RunProfile& run, const std::string& key);

}  // namespace dtrain::analysis
