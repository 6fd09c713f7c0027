// The time of a run's loaders by state: on cores, waiting for a core, or waiting for storage. The workers recorded it.
#pragma once

#include <optional>
#include <string>

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// The use of the loader of one rank, or of several ranks together.
struct LoaderUse {
  double read_s = 0;    // seconds of reading, added up over the workers
  double waited_s = 0;  // seconds for which the training waited for batches
  double steps_s = 0;   // seconds of the steps
  double workers = 0;   // of a rank, mean over batches
  LoaderUsage usage;

  double cpu_share() const;      // of read_s: on a core
  double no_core_share() const;  // ready to run, without a core
  double storage_share() const;  // the rest: waiting for storage or locks
  // Returns the mean bytes of a request to storage. Empty: (almost) nothing came from there.
  std::optional<double> bytes_of_request() const;
};

// `rank`: -1: all of the run. Empty: nothing was recorded.
std::optional<LoaderUse> loader_use(const RunProfile& run, int rank = -1);

// Return the place of loader settings such as the number of workers: "data.workers" in an experiment with a model,
// "LoaderSettings::workers" in a program.
bool has_data_keys(const RunProfile& run);
std::string loader_setting(const RunProfile& run, const std::string& key);

}  // namespace dtrain::analysis
