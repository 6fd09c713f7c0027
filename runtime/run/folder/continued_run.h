// A run that goes on in its own folder (--continue): with what it was started, and whether it may go on. Plain values
// and functions that read files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/run/run_folder.h"
#include "folder/resume_point.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::run {

struct ContinuedRun {
  RunFolder folder;
  std::filesystem::path experiment_file;  // that it was started with: relative paths are relative to its folder
  std::filesystem::path contents;      // its copy in the run's folder, if that file has changed or is gone; else empty
  std::vector<std::string> overrides;  // that it was started with
  std::filesystem::path cluster_file;  // the same; empty: none, or it is not there any more
  Json plan;                           // plan.json of the last attempt whose ranks began to train
  int number = 1;                      // this continuation's, from 1
};

// Reads the run that `run` names (find_run()). ConfigError if there is none, or if it cannot go on: nothing of it was
// ever started, it is a mock run, or its checkpoints are not there (find_checkpoint_folder()).
ContinuedRun read_continued_run(const std::string& run);

// ConfigError naming a process of the run that is left on this host.
void check_not_in_progress(const RunFolder& folder);

// The overrides of the run, then `more`, which replace those of the same key.
std::vector<std::string> merge_overrides(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& more);

// "before" of the continuation's plan.json: {continuation, plan}. If its ranks never begin to train, the next
// continuation goes on with that plan, and not with overrides that may be the reason.
Json plan_before(const ContinuedRun& run);

// ConfigError if the run cannot go on from `point`: its checkpoints are all damaged; or it is complete, or further, and
// `experiment` is not longer.
void check_goes_on(const ContinuedRun& run, const config::Experiment& experiment, const ResumePoint& point);

// ConfigError if one of `overrides`, without those that the run has already, names another folder in
// checkpoint_storage than the one that the run's checkpoints stay in.
void check_storage_stays(const ContinuedRun& run, const std::vector<std::string>& overrides,
                         const config::Experiment& experiment);

// What is different from the run's last attempt, a line each: keys that change what is trained, with both values; and
// another number of ranks or hosts, or slots of another type, with which the result is not the same to the bit. `plan`
// is the plan.json of the next attempt.
std::vector<std::string> differences_from(const ContinuedRun& run, const Json& plan);

}  // namespace dtrain::run
