// The experiment file as typed values, and its strict reader: every key has an effect or is an error, and all errors
// of a file are reported at once. docs/experiment.md describes the keys. Plain values, no threads, no global state.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/length.h"
#include "dtrain/config/model_job.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/config/profiling.h"
#include "dtrain/config/profiling_rules.h"
#include "dtrain/config/resources.h"

namespace dtrain::config {

struct Searcher {
  std::string metric;  // the validation metric that counts; empty: none named
  bool smaller_is_better = true;
  Length max_length;  // at least 1
  bool operator==(const Searcher&) const = default;
};

struct Experiment {
  std::filesystem::path file;  // as it was given; relative paths inside are relative to its folder
  std::string text;            // the file as it was given, overrides not applied

  std::string name;  // the file's name without its ending where the key is missing
  std::string description;
  std::vector<std::string> labels;
  std::vector<std::string> entrypoint;  // program and arguments, at least one; of a `model:` experiment dtrain-worker
  std::optional<ModelJob> model;        // set: `model:` was given and no entrypoint
  Resources resources;
  std::int64_t global_batch_size = 0;     // at least slots_per_trial
  Json hyperparameters = Json::object();  // all of them, global_batch_size too; {type: const, val: x} is x here
  Optimizations optimizations;
  Profiling profiling;
  ProfilingRules profiling_rules;
  Searcher searcher;

  Length min_validation_period;  // 0 batches: only at the end
  bool perform_initial_validation = false;
  std::optional<std::int64_t> records_per_epoch;
  int max_restarts = 0;                // after a signal or a lost host
  std::int64_t scheduling_unit = 100;  // batches between progress reports and metric reductions
  bool stop_on_non_finite = false;     // a loss or gradient norm that is nan or infinite ends the run; else: a warning
  std::chrono::milliseconds communication_timeout = std::chrono::seconds(600);
  Backend communication_backend = Backend::kAuto;
  std::uint64_t experiment_seed = 0;
  Json data = Json::object();             // for the trial
  std::filesystem::path initial_weights;  // a .safetensors file, resolved against the file's folder; empty: none
  std::vector<std::pair<std::string, std::string>> environment_variables;
};

// `overrides` are the "a.b=c" of --set, in order. Throws ConfigErrors; a file that cannot be read is one too.
Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides = {});

// Every value in effect, under the keys of the file: what plan.json shows.
Json to_json(const Experiment& experiment);

}  // namespace dtrain::config
