// The judgements about a run, all of one form. A rule counts the data points beyond thresholds that the user may set; a
// finding has a cost in seconds. The chapters in this folder declare them; judge.cpp names
// and lists them. Private to analysis.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/config/profiling.h"
#include "findings/series.h"
#include "measure/evidence.h"
#include "read/text.h"

namespace dtrain::analysis::findings {

// --- the parameters of a rule ---

enum class JudgedSteps { kBoth, kTrain, kEval };

// A key of the rule's mapping in `profiling.rules`.
struct Parameter {
  const char* name;
  const char* text;
  std::variant<double, std::int64_t, JudgedSteps> value;  // the default, then the value in effect
  config::Bounds bounds = {.min = 0, .max = 0};           // of a number
  const char* unit = "";
};

inline constexpr config::Bounds kPercent{.min = 0, .max = 100};
inline constexpr double kMaxPoints = std::numeric_limits<std::int32_t>::max();

constexpr Parameter real(const char* name, const char* text, double value, config::Bounds bounds = kPercent,
                         const char* unit = "") {
  return {name, text, value, bounds, unit};
}
constexpr Parameter whole(const char* name, const char* text, std::int64_t value, config::Bounds bounds) {
  return {name, text, value, bounds};
}
constexpr Parameter window(std::int64_t points) {
  return whole("window", "Data points (two per second) that are judged together.", points, {1, kMaxPoints});
}
inline constexpr Parameter kPatience =
    whole("patience", "Data points (two per second) to skip at the start, at most until the first training step.", 1000,
          {0, kMaxPoints});

class Parameters {
 public:
  Parameters() = default;
  Parameters(std::initializer_list<Parameter> all) : all_(all) {}
  double operator[](std::string_view name) const { return get<double>(name); }
  std::int64_t count(std::string_view name) const { return get<std::int64_t>(name); }
  std::int64_t patience() const { return find("patience") ? count("patience") : 0; }
  // Throws std::logic_error if the rule has not declared such a parameter.
  template <class T>
  T get(std::string_view name) const {
    return std::get<T>(at(name).value);
  }
  bool empty() const { return all_.empty(); }
  void declare_keys(config::Keys& keys);

 private:
  const Parameter* find(std::string_view name) const;
  const Parameter& at(std::string_view name) const;

  std::vector<Parameter> all_;
};

// --- a judgement ---

// The input of searches for costs.
struct Run {
  Run(const Evidence& evidence_of_run, const Analysis& analysis_so_far);
  const Evidence& evidence;
  const Analysis& analysis;
  std::optional<Stalls> stalls;  // empty if other findings account for them
};

// One entry of the list. It has either judge() or search().
//
// Thresholds are percent unless stated otherwise. `patience` and `window` are data points, two a second; patience ends
// at the first training step if that comes sooner. Names and defaults of the first nine rules are those of SageMaker
// Debugger's profiling report.
struct Judgement {
  const char* id = "";
  const char* text = "";   // the rule's key in the schema and the documents
  const char* group = "";  // these four become the Finding's
  const char* unit = "";
  const char* title = "";
  const char* advice = "";
  const char* without_gpus = nullptr;  // the reason for which it does not apply to runs on CPUs; null: it does
  Parameters parameters = {};
  // Counts data points. Returns the reason for which the rule does not apply; empty: it does.
  std::string (*judge)(const RuleData& data, const Parameters& parameters, Finding& result) = nullptr;
  // Returns all findings of a kind, however small; those without an id or a cause get the judgement's id.
  std::vector<Finding> (*search)(const Run& run) = nullptr;
  bool needs_loop = true;  // it searches only runs that have trained
};

// All judgements: first the rules, in the order of docs/rules.md and of the results, then the searches.
std::vector<Judgement> judgements();

Finding judge(const Judgement& rule, const RuleData& data);
// Visits the rule's mapping, under its name. A rule without parameters visits nothing.
void declare_keys(config::Keys& keys, Judgement& rule);

// The rules of a run with the parameters in effect.
class RuleSet final : public config::RuleParameters {
 public:
  explicit RuleSet(const std::vector<Judgement>& all = judgements());
  void declare_keys(config::Keys& keys) override;
  std::unique_ptr<config::RuleParameters> clone() const override { return std::make_unique<RuleSet>(*this); }
  // Returns the result of each rule, with its parameters.
  std::vector<Finding> judge(const RuleData& data) const;

 private:
  std::vector<Judgement> rules_;
};

// Returns the worthwhile findings of all searches, the most expensive first.
std::vector<Finding> search(const Run& run);

// Returns one sentence on what to do first: the most expensive finding if it is worthwhile, otherwise a general remark.
std::string look_at(const Analysis& analysis);

// Returns a rule's "3 steps, of 1,200 data points judged".
std::string triggered_text(const Finding& result);
void write_findings(TextWriter& out, const Analysis& analysis);
// Writes the rules that triggered, with advice; then those that did not, and those that do not apply, with the reason.
void write_rules(TextWriter& out, const std::vector<Finding>& results);

// --- data points that rules judge (data_points.cpp) ---

// The samples of a host from the end of the rule's patience to the end of the training. The counts of the result get
// the numbers of these and of the others.
std::span<const HostSample> judged_samples(const HostSeries& host, std::int64_t patience, Finding& result);

// Collects items of a kind that are judged one by one.
class Items {
 public:
  Items(Finding& result, const char* plural) : result_(result), plural_(plural) {}
  bool empty() const { return all_.empty(); }
  // Counts an item of which nothing is known.
  void unknown() { ++unlisted_; }
  // `points`: the number of the item's data points; 0: what is judged is not known of it.
  void add(Json facts, std::int64_t points, bool triggers);
  // Completes the result: its counts (all = not_known + fine + triggered), and the details of each item. Returns
  // `why_not` if nothing is known of any item.
  std::string finish(const std::string& why_not);
  // Completes the result with these counts instead.
  std::string finish_with(const Json& counts);

 private:
  Finding& result_;
  const char* plural_;
  std::int64_t unlisted_ = 0, without_points_ = 0;
  Json all_ = Json::array();
};

// The fuller memory of a sample: the host's, or that within the limit of the ranks' cgroup. The kernel kills processes
// if either is full. Empty: neither is known.
struct HostMemory {
  double free = 0, total = 0;  // bytes
  bool of_cgroup = false;
  double used_percent() const { return 100 * (1 - free / total); }
};
std::optional<HostMemory> memory_of(const Machine& machine, const HostSample& sample);

bool has_gpus(Hosts hosts);
inline constexpr const char* kNoGpu = "the run used no GPU";
inline constexpr const char* kNoSystemSample = "no system sample was taken during the training";

// {"agent", "host"}
Json describe(const HostSeries& host);

// One GPU of a run and its readings.
struct GpuPoints {
  const HostSeries* host = nullptr;
  std::size_t at = 0;  // in host->gpus
  std::vector<double> values;
};
// {"agent", "host", "gpu", "name"}
Json describe(const GpuPoints& gpu);
using GpuMetric = std::optional<double> GpuReading::*;
// Returns the metric's values of every GPU in the judged samples. A GPU without any value has an empty list.
std::vector<GpuPoints> gpu_points(Hosts hosts, std::int64_t patience, GpuMetric metric, Finding& result);

double percent(std::int64_t part, std::int64_t whole);

// Returns consecutive windows from the first point on, without an incomplete last one.
std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window);
// Returns the reason for which a rule that judges windows has none.
std::string too_few_points(std::int64_t most, std::int64_t window, const char* of = "a GPU");

struct SeriesStatistics {  // over the steps of a series, including folded steps
  std::int64_t steps = 0;
  double mean_s = 0, stddev_s = 0;  // of all steps (population); exact with folded steps too
  double min_s = 0, max_s = 0;      // exact
  double median_s = 0, mad_s = 0;   // median, and median of the absolute deviations from it
  double p50_s = 0, p95_s = 0, p99_s = 0;
};
SeriesStatistics statistics_of(const StepSeries& series);
// Returns quantile() of statistics.h and leaves the values as they are.
double quantile_of(std::span<const double> values, double share);

// --- searches for costs ---

inline constexpr double kLeastShare = 0.01;
// The least share of the loop that is worth looking at first.
inline constexpr double kWorthwhile = 0.05;
// The load of other programs on a rank's cores, in percent of one core, that matters.
inline constexpr double kForeignPercent = 10;

// True if a quota stops the ranks for so much of the time that the speed of computing only shows the quota.
bool is_throttled(const Evidence& evidence);
// True if the quota causes most of the given waiting or stalling: of all ranks, or of the rank at index `rank`.
bool is_quota_doing(const Evidence& evidence, double seconds, int rank = -1);
bool is_quota_doing(const Evidence& evidence, const Stalls& stalls);
// True if findings about slow ranks and loaders account for the stalls.
bool are_covered(const Stalls& stalls, const Evidence& evidence, const Analysis& analysis);

// Returns the seconds of the run's exchanges that the engine would hide behind computing; 0 for all runs but those of
// unchanged scripts. The finding of the engine accounts for them.
double hidden_by_engine_s(const Evidence& evidence);

// "rank 3 on node-b"
std::string rank_name(const RankProfile& rank);
// Returns text on the seconds of a cost that the finding of stalls covers: ", less the 1.20 s of the stalls". Empty:
// none.
std::string less_stalls(double seconds);
// "resources.slots_per_trial: 2 and resources.cores_per_slot: 4"
std::string keys_text(const std::vector<std::string>& patch);
// Returns an index into RunProfile::ranks; 0 if there is no such rank.
std::size_t index_of_rank(const RunProfile& run, int rank);

}  // namespace dtrain::analysis::findings
