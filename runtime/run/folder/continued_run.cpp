#include "folder/continued_run.h"

#include <algorithm>
#include <array>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/run_state.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

std::string text_at(const Json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string key_of(const std::string& override) {
  return override.substr(0, override.find('='));
}

// Whether the file is there and has the contents of the run's copy.
bool is_unchanged(const fs::path& file, const RunFolder& folder) {
  std::error_code code;
  return fs::is_regular_file(file, code) && read_file(file) == read_file(folder.experiment());
}

const Json& at(const Json& json, const Json::json_pointer& path) {
  static const Json none;
  return json.contains(path) ? json.at(path) : none;
}

void add_difference(std::vector<std::string>& lines, const std::string& key, const Json& was, const Json& is) {
  if (was == is) return;
  if (was.is_object() && is.is_object()) {
    for (const auto& [name, value] : was.items()) {
      add_difference(lines, key + "." + name, value, is.value(name, Json()));
    }
    for (const auto& [name, value] : is.items()) {
      if (!was.contains(name)) add_difference(lines, key + "." + name, Json(), value);
    }
    return;
  }
  lines.push_back(key + " was " + to_line(was) + " and is " + to_line(is) +
                  " from here on: the result is that of neither value alone");
}

// "2 ranks", "4 ranks on 2 hosts"
std::string ranks_text(const Json& plan) {
  std::set<std::string> hosts;
  const Json& ranks = at(plan, "/ranks"_json_pointer);
  for (const Json& rank : ranks) hosts.insert(text_at(rank, "host"));
  const std::string text = std::to_string(ranks.size()) + (ranks.size() == 1 ? " rank" : " ranks");
  return hosts.size() < 2 ? text : text + " on " + std::to_string(hosts.size()) + " hosts";
}

std::string slots_text(const Json& plan) {
  return text_at(plan, "slot_type") == "cuda" ? "GPUs" : "cores";
}

}  // namespace

ContinuedRun read_continued_run(const std::string& run) {
  ContinuedRun result{.folder = find_run(run)};
  const fs::path& path = result.folder.path;
  std::error_code code;
  if (!fs::is_regular_file(result.folder.plan(), code)) {
    throw ConfigError("nothing of the run " + path.string() + " was started (it has no plan.json), so it cannot go on",
                      "launch its experiment as a new run");
  }
  result.plan = read_json(result.folder.plan());
  if (!result.plan.is_object()) throw ConfigError(result.folder.plan().string() + " does not hold the plan of a run");
  if (result.plan.contains("mock")) {
    throw ConfigError("the run " + path.string() + " is a mock run, which has no weights to go on with");
  }
  result.experiment_file = text_at(result.plan, "experiment_file");
  if (result.experiment_file.empty()) result.experiment_file = result.folder.experiment();
  if (!is_unchanged(result.experiment_file, result.folder)) result.contents = result.folder.experiment();
  if (const auto found = result.plan.find("overrides"); found != result.plan.end() && found->is_array()) {
    for (const Json& one : *found) {
      if (one.is_string()) result.overrides.push_back(one.get<std::string>());
    }
  }
  const fs::path cluster = text_at(result.plan, "cluster_file");
  if (fs::is_regular_file(cluster, code)) result.cluster_file = cluster;
  return result;
}

void check_not_in_progress(const RunFolder& folder) {
  const RunState state = read_state(folder);
  if (state.is_over()) return;
  throw ConfigError("the run " + folder.path.string() + " is in progress: " + state.alive + " carries it out",
                    "wait for its end, or stop it first (Ctrl-C there, dtrain task kill)");
}

std::vector<std::string> merge_overrides(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& more) {
  std::vector<std::string> result;
  for (const std::string& one : overrides) {
    const bool replaced =
        std::any_of(more.begin(), more.end(), [&](const auto& other) { return key_of(other) == key_of(one); });
    if (!replaced) result.push_back(one);
  }
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

void check_not_complete(const ContinuedRun& run, const config::Experiment& experiment) {
  const RunState state = read_state(run.folder);
  if (state.exit_code != static_cast<int>(ExitCode::kDone)) return;
  const config::Length& length = experiment.searcher.max_length;
  const std::string unit = config::word_of(config::kLengthUnits, length.unit);
  const Json& was = at(run.plan, "/experiment/searcher/max_length"_json_pointer);
  const bool same_unit = was.is_object() && was.contains(unit) && was.at(unit).is_number_integer();
  const bool longer = same_unit ? was.at(unit).get<std::int64_t>() < length.count : was != Json{{unit, length.count}};
  if (longer) return;
  throw ConfigError("the run " + run.folder.path.string() + " is complete: it was trained for " + to_string(length),
                    "to train it further, give a greater length: --set searcher.max_length." + unit + "=" +
                        std::to_string(2 * length.count));
}

std::vector<std::string> differences_from(const ContinuedRun& run, const Json& plan) {
  std::vector<std::string> lines;
  constexpr std::array kTrained{"/hyperparameters",
                                "/optimizer",
                                "/loss",
                                "/model",
                                "/data",
                                "/records_per_epoch",
                                "/optimizations/aggregation_frequency",
                                "/optimizations/gradient_compression",
                                "/optimizations/local_sgd",
                                "/reproducibility/experiment_seed"};
  for (const char* path : kTrained) {
    const Json::json_pointer pointer(std::string("/experiment") + path);
    std::string key = std::string(path).substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    add_difference(lines, key, at(run.plan, pointer), at(plan, pointer));
  }
  const auto add = [&](const std::string& was, const std::string& is, const std::string& why) {
    if (was == is) return;
    lines.push_back("the run was trained on " + was + " and is trained on " + is + " from here on: " + why +
                    ", so the result is not the same to the bit");
  };
  add(ranks_text(run.plan), ranks_text(plan), "it has the same global batches, but sums are rounded differently");
  add(slots_text(run.plan), slots_text(plan), "their arithmetic differs");
  return lines;
}

}  // namespace dtrain::run
