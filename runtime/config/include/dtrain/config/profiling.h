// The records beyond the step records, the batches for which they are made, and the parameters of the rules that judge
// a run. Plain values and their keys.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

// The address at which the monitor of each host answers Prometheus.
struct Prometheus {
  std::string address = "127.0.0.1";  // IPv4, of the host; 0.0.0.0: all it has
  int port = 0;                       // 0: any that is free
  bool operator==(const Prometheus&) const = default;
};

extern const TextRule kIpv4Address;

inline void declare_keys(Keys& keys, Prometheus& p) {
  keys.text(
      {"address",
       "An IPv4 address of the host; 0.0.0.0: all its addresses. Everyone who can reach it can read the metrics."},
      p.address, kIpv4Address);
  keys.integer({.name = "port",
                .text = "The port; 0: any free port, which the first line of profile/agent-*.jsonl shows.",
                .examples = "[9400]",
                .required = "the port to listen on, or 0 for any that is free"},
               p.port, {0, 65535});
}

// Batches of a rank, from 1; both ends included.
struct BatchRange {
  std::int64_t begin_on_batch = 0;
  std::int64_t end_after_batch = 0;
  bool operator==(const BatchRange&) const = default;
};

void check_together(Section& section, const BatchRange& range);

inline void declare_keys(Keys& keys, BatchRange& r) {
  keys.integer({.name = "begin_on_batch",
                .text = "The first batch; batches count from 1.",
                .examples = "[1]",
                .required = "the first batch that is traced"},
               r.begin_on_batch, {1, kMaxLength});
  keys.integer({.name = "end_after_batch",
                .text = "The last batch.",
                .examples = "[1000000000000000]",
                .required = "the last batch that is traced"},
               r.end_after_batch, {1, kMaxLength});
  keys.when_read([&](Section& section) { check_together(section, r); });
}

// Kernels are timed as often as that costs at most 1% of the training loop.
inline constexpr int kAutoKernelTimes = -1;

struct Profiling {
  bool enabled = false;
  std::int64_t begin_on_batch = 0;  // of `enabled`
  std::optional<std::int64_t> end_after_batch;
  bool sync_timings = true;              // on GPUs: the times of phases are those of the device
  std::optional<BatchRange> trace;       // instead of begin_on_batch and end_after_batch
  std::optional<Prometheus> prometheus;  // empty: the monitors do not listen
  bool calibration = true;               // `dtrain launch` measures a machine that it does not know
  int kernel_times = kAutoKernelTimes;   // on GPUs: every so many batches the kernels of one are timed; 0: never
  // Returns the batches of which every operator is recorded.
  std::optional<BatchRange> traced() const;
  bool operator==(const Profiling&) const = default;
};

// Checks which keys for batches may be given together, for the reader and the schema.
void check_together(Section& section, const Profiling& profiling);
Json profiling_together();

inline void declare_keys(Keys& keys, Profiling& p) {
  keys.boolean({"enabled", "Trace every operator of the batches begin_on_batch to end_after_batch.",
                "This key and the next two are Determined's way to write `profiling.trace`."},
               p.enabled);
  keys.integer({"begin_on_batch", "The first batch that is traced with enabled: true; batches count from 1."},
               p.begin_on_batch, {0, kMaxLength});
  keys.integer({"end_after_batch", "The last batch that is traced with enabled: true; null: until a trace is full."},
               p.end_after_batch, {1, kMaxLength});
  keys.boolean(
      {"sync_timings",
       "On GPUs: the times of a step's phases are the GPU's (true) or the host's (false). On CPUs both are the same.",
       "[More](profile-format.md#steps-on-gpus)."},
      p.sync_timings);
  keys.mapping({"trace", "The batches in which every operator is traced.", "[More](traces.md)."}, p.trace);
  keys.when_read([&](Section& section) { check_together(section, p); });
  keys.schema_rule(profiling_together);
  keys.mapping({"prometheus", "The monitor of each host serves metrics to Prometheus at http://address:port/metrics.",
                "[More](recording.md#prometheus)."},
               p.prometheus);
  keys.boolean(
      {"calibration",
       "Measure the limits of a machine (2 s) before the first run on it; false: use what was measured before.",
       "[More](performance.md#the-limits-of-a-machine)."},
      p.calibration);
  keys.auto_or_integer({"kernel_times",
                        "On GPUs: every so many batches the kernels of one batch are timed; 0: never; auto: as often "
                        "as costs at most 1% "
                        "of the training loop, and at least 500 batches apart.",
                        "[More](profiling.md#the-kernels-of-a-gpu)."},
                       p.kernel_times, {0, 1'000'000'000}, kAutoKernelTimes);
}

// Parameters of the rules that judge a run: `profiling.rules` of an experiment, plan.json's copy of them, and --rule.
// The rules with their keys are declared in runtime/analysis/findings. That library stands above this one, so it
// registers its rules here, and config reads, writes and describes their keys without including any of them.

// All rules with the parameters in effect.
class RuleParameters {
 public:
  virtual ~RuleParameters() = default;
  // Visits a mapping for each rule that has parameters, under the rule's name.
  virtual void declare_keys(Keys& keys) = 0;
  virtual std::unique_ptr<RuleParameters> clone() const = 0;
};

// `make` makes all rules at their defaults. libdtrain_analysis.so calls this once, while it is loaded. Returns true.
using MakeRules = std::unique_ptr<RuleParameters> (*)();
bool register_rules(MakeRules make);
// For a process that has not loaded that library, because it seldom needs rules: `load` loads it. It is called where an
// experiment file sets a rule; until then all rules are at their defaults. Returns true.
using LoadRules = void (*)();
bool find_rules_by(LoadRules load);
// Calls that function, unless rules are registered. Throws what it throws.
void find_rules();
bool has_rules();

class ProfilingRules {
 public:
  // All rules at their defaults. Throws std::logic_error in a program that has not loaded libdtrain_analysis.so, and
  // does not know how to.
  ProfilingRules();
  ProfilingRules(const ProfilingRules& other) : parameters_(other.parameters_ ? other.parameters_->clone() : nullptr) {}
  ProfilingRules& operator=(ProfilingRules other) noexcept {
    parameters_.swap(other.parameters_);
    return *this;
  }

  // Only where rules are registered.
  RuleParameters& parameters();
  // True if all parameters have the same values.
  bool operator==(const ProfilingRules& other) const;

 private:
  std::unique_ptr<RuleParameters> parameters_;  // null: none were registered yet, and all are at their defaults
};

inline void declare_keys(Keys& keys, ProfilingRules& rules) {
  keys.when_read([](Section&) { find_rules(); });
  if (has_rules()) rules.parameters().declare_keys(keys);
}

// Returns every parameter under its rule's name: {"StepOutlier": {"stddev": 3, ...}, ...}, as plan.json shows them.
Json to_json(const ProfilingRules& rules);

// Reads the rules of plan.json on top of the defaults. Leaves out rules and parameters of other versions of dtrain, and
// values that no reader would have accepted: the plan may be anybody's.
ProfilingRules profiling_rules_of(const Json& json);

// Applies the "NAME.parameter=value" of --rule, in order, on top of `rules`. Throws ConfigErrors.
ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides);

// These three functions do the same for any rules, whose keys `declare` visits.
Json rules_json(const Keys::Declare& declare);
void read_rules(const Json& json, const Keys::Declare& declare);
void read_overrides(std::span<const std::string> overrides, const Keys::Declare& declare);

}  // namespace dtrain::config
