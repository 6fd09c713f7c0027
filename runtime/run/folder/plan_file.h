// plan.json: what a run was decided to be, before it starts. Plain functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/scheduler/batch_split.h"

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::run {

struct RankPlacement {
  int rank = 0;
  std::string host;
  std::vector<int> cpus;  // it is bound to these; empty: not bound by dtrain
  std::string agent;      // empty: it was not placed; then its host stands for it
  int slot = -1;          // on the agent; -1: not by slots
  int threads = 0;        // how many of its threads can run at once; 0: as many as it has CPUs
};

struct PlanFacts {
  const config::Experiment& experiment;
  std::vector<std::string> overrides;
  std::string started_by;            // "dtrain launch", "Open MPI", …
  std::vector<std::string> command;  // of a rank
  scheduler::BatchSplit split;
  std::vector<RankPlacement> placement;
  std::vector<std::string> warnings;
  Json versions;
  Json more = Json::object();  // further keys
};

Json plan_json(const PlanFacts& facts);

// Writes plan.json whole: readers see the old file or the new.
void write_plan_file(const std::filesystem::path& plan, const Json& json);

// Replaces one top-level key of plan.json; readers see the old file or the new.
void update_plan_file(const std::filesystem::path& plan, const std::string& key, const Json& value);

}  // namespace dtrain::run
