// The division of a machine's cores among ranks (resources.slots_per_trial: auto): the divisions that come into
// question, and the one that was chosen, with its figures. Plain values and functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::launcher {

// A number of ranks, and the result of its trial.
struct DivisionTrial {
  int slots = 0;
  std::string text;        // "2 ranks x 1 core"
  double step_ms = 0;      // of a global batch: the median, of the slowest rank; 0: not measured
  std::int64_t steps = 0;  // the number of steps behind the median
  std::string failure;     // the reason why the trial is left out; empty: it counts
};

struct Division {
  int slots = 0;                      // chosen; 0: a launch has to measure first
  std::string why;                    // the reason for this number, if no trial decides
  bool remembered = false;            // an earlier launch has measured
  std::vector<DivisionTrial> trials;  // ascending by slots; empty: no trial decides
};

// Returns the divisions of an agent's cores to try: one rank, one per NUMA node, one per core, and divisors of the
// number of cores between, each at least twice the one before. Only numbers of ranks that divide the global batch
// evenly, and at most `most` ranks (0: no limit); one rank is always among them.
std::vector<DivisionTrial> divisions_to_try(const scheduler::ClusterAgent& agent, std::int64_t global_batch_size,
                                            int most);

// Returns the fastest measured trial; of equally fast trials, the one with the fewest ranks. Null: all failed.
const DivisionTrial* fastest_of(const std::vector<DivisionTrial>& trials);

Json to_json(const Division& division);
Division division_of(const Json& json);  // Json::exception if it is malformed

// Returns "1 rank x 2 cores: 12.3 ms a batch (median of 150)", or the reason why the trial is left out.
std::string trial_text(const DivisionTrial& trial);
// Returns the rows of the printed plan.
std::string render_division(const Division& division);

}  // namespace dtrain::launcher
