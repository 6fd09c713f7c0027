// The continuation of a run in its own folder: from which checkpoint, with what it was started, whether it may go on,
// and where the files of the attempt before are put. Plain values, and functions that read and move files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::rank {

// The point from which a run goes on: its newest checkpoint that is whole.
struct ResumePoint {
  std::filesystem::path path;            // the checkpoint; empty: there has been none, and the run begins anew
  std::int64_t step = 0;                 // batches done
  std::int64_t epoch = 0;                // from 0
  std::vector<std::string> passed_over;  // newer checkpoints that cannot be used, each with the reason
  int damaged = 0;                       // the number of these, the first ones, that were completed once
  std::string claimed;                   // a warning: claim_checkpoint_folder()'s; empty: none
  std::string not_finite;                // a warning: weights of it are not finite; empty: all are
  std::string still_saving;              // a warning: a saver of an earlier attempt did not end; empty: none

  bool exists() const { return !path.empty(); }
};

// Waits until an earlier attempt has ended its writing, for a minute at most, and reads the checkpoints whole until one
// verifies; if none does, tries for 3 s. `in_memory`: the furthest state in memory, which counts where no checkpoint is
// further. SystemError; ConfigError as find_checkpoint_folder(), and if there are
// checkpoints and none can be used: no run begins anew and replaces further checkpoints unless a user says so.
ResumePoint find_resume_point(const RunFolder& folder, const std::optional<ResumePoint>& in_memory);
// The same with the state that a launcher of this machine keeps in memory.
ResumePoint find_resume_point(const RunFolder& folder);

// Returns the fields {resume_from, step} of an event; {} if the run begins anew.
Json to_json(const ResumePoint& point);
// "step-120 (batch 120, epoch 2)"; "the beginning, because there is no checkpoint of it".
std::string text_of(const ResumePoint& point);
// Returns a line for a new folder of checkpoints, for each checkpoint that was passed over, for weights that are not
// finite, and for a saver that did not end.
std::vector<std::string> warnings_of(const ResumePoint& point);

// A run that goes on because a user asks for it (--continue).
struct ContinuedRun {
  RunFolder folder;
  std::filesystem::path experiment_file;  // the run was started with it: relative paths are relative to its folder
  std::filesystem::path contents;      // its copy in the run's folder, if that file has changed or is gone; else empty
  std::vector<std::string> overrides;  // the run was started with them
  std::filesystem::path cluster_file;  // the same; empty: none, or it is not there any more
  Json plan;                           // plan.json of the last attempt whose ranks began to train
  int number = 1;                      // this continuation's, from 1
};

// Reads the run that `run` names (find_run()). ConfigError if there is none, or if it cannot go on: nothing of it was
// ever started, it is a mock run, or its checkpoints are not there (find_checkpoint_folder()).
ContinuedRun read_continued_run(const std::string& run);

// ConfigError naming a process of the run that is left on this host.
void check_not_in_progress(const RunFolder& folder);

// Returns the overrides of the run, then `more`, which replace those of the same key.
std::vector<std::string> merge_overrides(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& more);

// "before" of the continuation's plan.json: {continuation, plan}. If its ranks never begin to train, the next
// continuation goes on with that plan, and not with overrides that may be the reason.
Json plan_before(const ContinuedRun& run);

// ConfigError if the run cannot go on from `point`: its checkpoints are all damaged; or it is complete, or further, and
// `experiment` is not longer.
void check_goes_on(const ContinuedRun& run, const config::Experiment& experiment, const ResumePoint& point);

// ConfigError if the run has another number of virtual ranks, or of their threads, than `experiment`.
void check_virtual_ranks_stay(const ContinuedRun& run, const config::Experiment& experiment);

// ConfigError if one of `overrides`, without those that the run has already, names another folder in
// checkpoint_storage than the one that the run's checkpoints stay in.
void check_storage_stays(const ContinuedRun& run, const std::vector<std::string>& overrides,
                         const config::Experiment& experiment);

// Returns the differences from the run's last attempt, a line each: keys that change what is trained, with both values;
// and another number of ranks or hosts, or slots of another type, with which the result is not the same to the bit.
// `plan` is the plan.json of the next attempt.
std::vector<std::string> differences_from(const ContinuedRun& run, const Json& plan);

// Returns the number of the attempt whose files are in their usual place: from 1.
int attempt_number(const RunFolder& folder);

// The files of an attempt that stay where they are.
struct Kept {
  bool metrics = false;       // the next attempt goes on from a checkpoint, and with them
  bool launcher_log = false;  // logs/launcher.log: the launcher that writes it goes on
};

// Moves the logs, records and metrics of that attempt to attempt-N/ of the run's folder. Returns N. SystemError,
// std::filesystem::filesystem_error.
int put_aside(const RunFolder& folder, const Kept& kept);

}  // namespace dtrain::rank
