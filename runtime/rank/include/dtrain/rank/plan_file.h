// plan.json: the run's plan, as decided before it starts. Plain functions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/config/batch_split.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::rank {

struct PlacedGpu {
  int index = -1;    // NVML's, on its host; -1: a MIG instance
  std::string uuid;  // of a MIG instance its name; empty: not reported
  std::string name;

  // Returns the GPU's name in CUDA_VISIBLE_DEVICES, in the order of PCI addresses.
  std::string id() const { return uuid.empty() ? std::to_string(index) : uuid; }
};
std::string text_of(const PlacedGpu& gpu);  // "GPU 0 (NVIDIA H200, GPU-…)"
Json to_json(const PlacedGpu& gpu);

struct RankPlacement {
  int rank = 0;
  std::string host;
  std::vector<int> cpus;         // the rank is bound to these CPUs; empty: dtrain does not bind it
  std::string agent;             // empty: the rank was not placed, and its host is used instead
  int slot = -1;                 // on the agent; of slots made of cores: of the task; -1: it was not placed by slots
  int cores = 0;                 // physical ones that the CPUs belong to; 0: not known
  int threads = 0;               // of libtorch; 0: one for each core, which only its host knows
  int most_threads = 0;          // with one for each CPU that can run at once; 0: not known
  std::optional<PlacedGpu> gpu;  // empty: it trains on the CPU, or its host has not told yet which GPU it has
};

// "2 slots x 16 cores", "2 slots x 2 to 3 cores"; without the cores where they are not known.
std::string slots_and_cores(const std::vector<RankPlacement>& ranks);

struct PlanFacts {
  const config::Experiment& experiment;
  std::vector<std::string> overrides;
  std::string started_by;            // "dtrain launch", "Open MPI", …
  std::vector<std::string> command;  // the command line of a rank
  config::BatchSplit split;
  std::vector<RankPlacement> placement;
  bool on_gpus = false;
  std::vector<std::string> warnings;
  Json versions;
  Json more = Json::object();  // further keys
};

Json plan_json(const PlanFacts& facts);

// Replaces plan.json as a whole: readers see the old file or the new one. Overrides with values of environment
// variables (config::holds_variables) are hidden in it, and kept in overrides.json beside it. That file and the run's
// experiment.yaml get the mode private_mode_of().
void write_plan_file(const std::filesystem::path& plan, Json json);

// Returns the overrides of a plan that was read from the file `plan`, with what write_plan_file() has hidden.
// ConfigError: overrides.json cannot be read.
std::vector<std::string> overrides_of(const std::filesystem::path& plan, const Json& json);

// Returns the mode of the files that hold such values, as the plan's experiment says.
mode_t private_mode_of(const Json& plan);

// Replaces one top-level key of plan.json; readers see the old file or the new one.
void update_plan_file(const std::filesystem::path& plan, const std::string& key, const Json& value);

}  // namespace dtrain::rank
