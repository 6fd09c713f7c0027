// Where a run goes on: its newest checkpoint that is whole. Plain values and functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

struct ResumePoint {
  std::filesystem::path path;            // the checkpoint; empty: there has been none, and the run begins anew
  std::int64_t step = 0;                 // batches done
  std::int64_t epoch = 0;                // from 0
  std::vector<std::string> passed_over;  // newer checkpoints that cannot be used, each with the reason
  int damaged = 0;                       // how many of these, the first ones, were completed once
  std::string claimed;                   // a warning: claim_checkpoint_folder()'s; empty: none
  std::string not_finite;                // a warning: weights of it are not finite; empty: all are
  std::string still_saving;              // a warning: a saver of an earlier attempt did not end; empty: none

  bool exists() const { return !path.empty(); }
};

// Waits for what an earlier attempt is still writing, for a minute at most, and reads the checkpoints whole until one
// verifies; where none does, tries for 3 s. SystemError; ConfigError as find_checkpoint_folder(), and where there are
// checkpoints and none can be used: nobody begins anew and replaces what is further unless a user says so.
ResumePoint find_resume_point(const RunFolder& folder);

// The fields {resume_from, step} of an event; {} if the run begins anew.
Json to_json(const ResumePoint& point);
// "step-120 (batch 120, epoch 2)"; "the beginning, because there is no checkpoint of it".
std::string text_of(const ResumePoint& point);
// A line for a new folder of checkpoints, for each checkpoint that was passed over, for weights that are not finite,
// and for a saver that did not end.
std::vector<std::string> warnings_of(const ResumePoint& point);

}  // namespace dtrain::run
