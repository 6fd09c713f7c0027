// Two runs side by side: how B differs from A. A test over their steps decides which differences are more than noise.
// Everything is computed from the folders of the runs. Plain values; any thread may call. The same runs give the same
// numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct DiffOptions {
  std::optional<double> fail_above;  // 0.05: a step 5% longer, or 5% less throughput, is a regression
};

enum class DiffVerdict {
  kWorse,
  kBetter,
  kNoChange,   // no change above noise and above the smallest change that counts
  kUndecided,  // not tested: too few steps, or steps that cannot be compared
};
std::string_view name_of(DiffVerdict verdict);  // "worse", "better", "no_change", "undecided"

struct DiffInterval {
  double low = 0, high = 0;
};

// One quantity of both runs. `change` is relative to A. For a phase it is (b - a) / (A's step), so that the changes of
// the phases add up to that of the step.
struct DiffQuantity {
  std::string name;
  double a = 0, b = 0, change = 0;
  std::optional<DiffInterval> interval;  // of `change`; empty: not tested
  DiffVerdict verdict = DiffVerdict::kUndecided;
};

// The steps of a run that were compared.
struct DiffSide {
  std::string name, run_dir;
  int world_size = 0;
  std::optional<std::int64_t> global_batch_size;
  std::int64_t steps = 0;                     // compared steps of a rank
  std::int64_t first_batch = 0, warm_up = 0;  // the first recorded step; how many steps at the start are left out
  std::int64_t long_steps = 0;                // far longer than the median
  double long_share = 0;                      // their share of the time in steps
  std::int64_t observations = 0;              // of the test: steps, or groups of them
  double autocorrelation = 0;                 // between the times of an observation and the next
  double block_length = 1;                    // mean, in observations
  std::vector<std::string> warnings;          // of the run
};

struct DiffMemory {
  int rank = 0;
  double a_bytes = 0, b_bytes = 0;  // peak resident memory
  bool stands_out = false;          // they differ by over a tenth and 16 MiB; not tested, as a run has only one value
};

struct DiffEntry {
  std::string key, a, b;
};

struct DiffRule {
  std::string name, text;      // the text says how often it triggers, and on what
  bool may_be_chance = false;  // it triggers so rarely that its absence in the other run may be chance
};

struct RunDiff {
  DiffSide a, b;
  // The steps of both runs do the same work. If not, `why_not` is the difference, and only throughput is tested.
  bool same_work = true;
  std::string why_not;
  bool grouped = false;    // observations are groups of steps, because the dump of a long run has windows
  std::int64_t turns = 0;  // > 0: A and B took turns on the same clock, this many times, and are compared turn by turn

  DiffQuantity step;                 // seconds: the median step; with turns, `change` is the median over the turns
  DiffQuantity throughput;           // samples a second, long steps included
  std::vector<DiffQuantity> phases;  // seconds a step, without the long steps; allreduce_wait is exposed communication
  std::vector<DiffMemory> memory;    // of the ranks that both runs have
  std::vector<DiffRule> new_rules, gone_rules;    // trigger only in B, only in A
  std::vector<DiffRule> new_faults, gone_faults;  // findings that are faults, of 3% of the loop or more
  std::vector<DiffEntry> differences;             // of the plans: world, batch, settings, versions

  double confidence = 0;  // of each interval; for phases: of all their intervals together
  double min_effect = 0;  // a change is only reported if it is certainly larger than this
  std::optional<double> fail_above;
  DiffVerdict verdict = DiffVerdict::kUndecided;
  bool regression = false;  // worse by more than fail_above
  std::string conclusion;   // one sentence for people
  std::vector<std::string> notes;
};

// DataError if a run has no steps. With fail_above, ConfigError if there are too few steps to judge.
RunDiff diff_runs(const RunProfile& a, const RunProfile& b, const DiffOptions& options = {});

Json to_json(const RunDiff& diff);
std::string render_diff(const RunDiff& diff, const TextOptions& options);

}  // namespace dtrain::analysis
