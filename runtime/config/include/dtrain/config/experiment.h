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
#include "dtrain/config/model_job.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/config/profiling_rules.h"

namespace dtrain::config {

enum class LengthUnit { kBatches, kRecords, kEpochs };

// A distance in training: `{epochs: 2}`.
struct Length {
  LengthUnit unit = LengthUnit::kBatches;
  std::int64_t count = 0;
  bool operator==(const Length&) const = default;
};

// "2 epochs", "1 batch"
std::string to_string(const Length& length);

// In batches, rounded up: a batch here is one of global_batch_size records, whatever aggregation_frequency is.
std::int64_t in_batches(const Length& length, std::int64_t global_batch_size, std::int64_t batches_per_epoch);

enum class SlotType { kAuto, kCpu };

// How the ranks' memory and messages travel. kAuto: kShm on one host, over several kMpi with one rank each,
// kHierarchical with more.
enum class Backend { kAuto, kShm, kMpi, kHierarchical };

struct Resources {
  int slots_per_trial = 1;
  SlotType slot_type = SlotType::kAuto;
  bool is_single_node = false;
  int priority = 42;  // 1 to 99; lower ones go first
  std::string resource_pool = "default";
  std::optional<int> max_slots;  // that all running trials of this name hold together; at least slots_per_trial
  bool operator==(const Resources&) const = default;
};

struct Searcher {
  std::string metric;  // the validation metric that counts; empty: none named
  bool smaller_is_better = true;
  Length max_length;  // at least 1
  bool operator==(const Searcher&) const = default;
};

// Where the agent of each host answers Prometheus.
struct Prometheus {
  std::string address = "127.0.0.1";  // IPv4, of the host; 0.0.0.0: all it has
  int port = 0;                       // 0: any that is free
  bool operator==(const Prometheus&) const = default;
};

// Batches of a rank, from 1; both ends included.
struct BatchRange {
  std::int64_t begin_on_batch = 0;
  std::int64_t end_after_batch = 0;
  bool operator==(const BatchRange&) const = default;
};

struct Profiling {
  bool enabled = false;
  std::int64_t begin_on_batch = 0;  // of `enabled`
  std::optional<std::int64_t> end_after_batch;
  std::optional<BatchRange> trace;       // instead of those two
  std::optional<Prometheus> prometheus;  // none: nobody listens
  // The batches of which every operator is recorded.
  std::optional<BatchRange> traced() const;
  bool operator==(const Profiling&) const = default;
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
