#include "dtrain/rank/resume.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/config/batch_split.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/screen.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;

// A file system may be without its files for a moment.
constexpr int kReadAgain = 3;
constexpr auto kReadAgainAfter = std::chrono::seconds(1);

// ConfigError: none of the checkpoints can be used, though they were completed once.
[[noreturn]] void refuse_damaged(const RunFolder& folder, const ResumePoint& point) {
  std::string text = "none of the checkpoints of the run " + folder.path.string() + " can be used:";
  for (int i = 0; i < point.damaged; ++i) text += "\n  " + point.passed_over[static_cast<std::size_t>(i)];
  std::string steps;
  for (const checkpoints::Entry& entry : checkpoints::list(find_checkpoint_folder(folder))) {
    steps += " " + std::to_string(entry.about.step);
  }
  std::string remedy =
      "to begin at batch 1, delete them with " + own_command() + " checkpoint delete " + reference_of(folder) + steps;
  const std::filesystem::path weights = folder.path / "checkpoints" / "final";
  std::error_code code;
  if (std::filesystem::exists(weights / checkpoints::kModelFile, code)) {
    remedy += "; or launch a new run with initial_weights: " + weights.string();
  }
  throw ConfigError(text, remedy);
}

// Returns a warning, with a remedy, that the weights of the checkpoint for the continuation are not finite.
std::string not_finite_text(const RunFolder& folder, const checkpoints::Newest& newest) {
  std::string text = "the checkpoint of batch " + std::to_string(newest.entry->about.step) +
                     " has values that are not finite (" + newest.entry->not_finite + ")";
  if (!newest.finite) return text + "; there is no earlier one with finite values";
  const std::string run = reference_of(folder);
  return text + "; the last one with finite values is " + newest.finite->path.filename().string() +
         "; to go on from there, end the run and delete what comes after it: " + own_command() + " checkpoint delete " +
         run + " --after " + std::to_string(newest.finite->about.step) + "; then " + own_command() +
         " launch --continue " + run;
}

std::string key_of(const std::string& override) {
  return override.substr(0, override.find('='));
}

// True if the file is there and has the contents of the run's copy.
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
  const std::string text = count_of(ranks.size(), "rank");
  return hosts.size() < 2 ? text : text + " on " + std::to_string(hosts.size()) + " hosts";
}

std::int64_t number_at(const Json& json, const Json::json_pointer& path) {
  const Json& value = at(json, path);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

// Returns the length in batches; empty: a length in epochs says nothing about batches.
std::optional<std::int64_t> batches_of(const config::Experiment& experiment, const Json& plan) {
  const config::Length& length = experiment.searcher.max_length;
  std::int64_t per_epoch = 1;
  if (length.unit == config::LengthUnit::kEpochs) {
    per_epoch = number_at(plan, "/length/batches_per_epoch"_json_pointer);
    const auto batch = number_at(plan, "/experiment/hyperparameters/global_batch_size"_json_pointer);
    if (per_epoch == 0 || batch != experiment.global_batch_size) return std::nullopt;
  }
  const auto split = config::split_batch(experiment.global_batch_size,
                                         experiment.parts_of_batch(experiment.resources.slots_per_trial));
  return config::in_batches(length, split.effective, per_epoch);
}

// Refuses a checkpoint's folder in the place of a run.
void refuse_checkpoint(const std::string& text) {
  fs::path path = fs::absolute(text).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code code;
  if (!fs::is_regular_file(path / checkpoints::kManifestFile, code)) return;
  const fs::path storage = path.parent_path();
  RunFolder run{storage.parent_path()};
  if (!fs::exists(run.plan(), code)) run.path = run_of_checkpoint_folder(storage);
  const std::string name = run.path.empty() ? "RUN" : reference_of(run);
  std::string newer;
  for (const checkpoints::Entry& entry : checkpoints::list(storage)) {
    if (entry.about.step > checkpoints::look_at(path).about.step) newer += " " + std::to_string(entry.about.step);
  }
  const std::string command = own_command();
  const std::string go_on = command + " launch --continue " + name;
  throw ConfigError(text + " is a checkpoint, and a run goes on from its newest one",
                    (newer.empty() ? go_on + " goes on from it"
                                   : "delete newer ones first with " + command + " checkpoint delete " + name + newer +
                                         ", then " + go_on) +
                        "; or start a new run from it with initial_weights: " + path.string());
}

std::string slots_text(const Json& plan) {
  return text_at(plan, "slot_type") == "cuda" ? "GPUs" : "cores";
}

fs::path folder_aside(const RunFolder& folder, int attempt) {
  return folder.path / ("attempt-" + std::to_string(attempt));
}

// What was asked for. A script's global batch is its loader's, and the number in a plan stands for it until the loader
// is there.
Json asked_of_training(const Json& plan) {
  Json asked = at(plan, "/experiment"_json_pointer);
  const auto found = asked.find("hyperparameters");
  if (found != asked.end() && found->value("batch_size_of_loader", Json()) == Json(true))
    found->erase("global_batch_size");
  return asked;
}

}  // namespace

ResumePoint find_resume_point(const RunFolder& folder) {
  const auto newest = checkpoints::newest_in_memory(folder.path);
  if (!newest) return find_resume_point(folder, std::nullopt);
  return find_resume_point(folder,
                           ResumePoint{.path = newest->path, .step = newest->about.step, .epoch = newest->about.epoch});
}

ResumePoint find_resume_point(const RunFolder& folder, const std::optional<ResumePoint>& in_memory) {
  const std::filesystem::path storage = find_checkpoint_folder(folder);
  ResumePoint point;
  std::error_code code;
  const bool has_storage = std::filesystem::is_directory(storage, code);
  // A state in memory needs no verification: its mark shows that it is whole.
  if (in_memory) {
    const std::vector<checkpoints::Entry> on_disk =
        has_storage ? checkpoints::list(storage) : std::vector<checkpoints::Entry>();
    if (on_disk.empty() || on_disk.back().about.step <= in_memory->step) return *in_memory;
  }
  if (!has_storage) return point;
  if (!checkpoints::wait_for_savers(storage, checkpoints::kSaverPatience)) {
    point.still_saving = "a saver of an earlier attempt has been writing into " + storage.string() + " for more than " +
                         std::to_string(checkpoints::kSaverPatience.count()) + " s; what it writes is not waited for";
  }
  checkpoints::Newest newest = checkpoints::find_newest(storage);
  for (int again = 0; again < kReadAgain && !newest.entry && newest.damaged > 0; ++again) {
    std::this_thread::sleep_for(kReadAgainAfter);
    newest = checkpoints::find_newest(storage);
  }
  point.passed_over = std::move(newest.passed_over);
  point.damaged = newest.damaged;
  if (!newest.entry && point.damaged > 0) refuse_damaged(folder, point);
  if (!newest.entry) return point;
  point.path = newest.entry->path;
  point.step = newest.entry->about.step;
  point.epoch = newest.entry->about.epoch;
  if (!newest.entry->not_finite.empty()) point.not_finite = not_finite_text(folder, newest);
  return point;
}

Json to_json(const ResumePoint& point) {
  if (!point.exists()) return Json::object();
  return {{"resume_from", point.path.string()}, {"step", point.step}};
}

std::string text_of(const ResumePoint& point) {
  if (!point.exists()) return "the beginning, because there is no checkpoint of it";
  return point.path.filename().string() + " (batch " + std::to_string(point.step) + ", epoch " +
         std::to_string(point.epoch + 1) + ")";
}

std::vector<std::string> warnings_of(const ResumePoint& point) {
  std::vector<std::string> warnings;
  if (!point.still_saving.empty()) warnings.push_back(point.still_saving);
  if (!point.claimed.empty()) warnings.push_back(point.claimed);
  if (!point.not_finite.empty()) warnings.push_back(point.not_finite);
  for (const std::string& checkpoint : point.passed_over)
    warnings.push_back("a checkpoint is passed over: " + checkpoint);
  return warnings;
}

ContinuedRun read_continued_run(const std::string& run) {
  refuse_checkpoint(run);
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
  const RunState state = read_state(result.folder);
  result.number = state.continued + 1;
  if (result.plan.contains("before") && state.trained < number_at(result.plan, "/before/continuation"_json_pointer)) {
    result.plan = Json(at(result.plan, "/before/plan"_json_pointer));
  }
  result.experiment_file = text_at(result.plan, "experiment_file");
  if (result.experiment_file.empty()) result.experiment_file = result.folder.experiment();
  if (!is_unchanged(result.experiment_file, result.folder)) result.contents = result.folder.experiment();
  result.overrides = overrides_of(result.folder.plan(), result.plan);
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
  for (const std::string& setting : overrides) {
    const bool replaced =
        std::any_of(more.begin(), more.end(), [&](const auto& other) { return key_of(other) == key_of(setting); });
    if (!replaced) result.push_back(setting);
  }
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

Json plan_before(const ContinuedRun& run) {
  Json plan = run.plan;
  plan.erase("before");
  return {{"continuation", run.number}, {"plan", std::move(plan)}};
}

void check_goes_on(const ContinuedRun& run, const config::Experiment& experiment, const ResumePoint& point) {
  const bool complete = read_state(run.folder).exit_code == ExitCode::kDone;
  const config::Length& length = experiment.searcher.max_length;
  // The loop of a script has a length of its own, which may be greater now.
  if (length.unit == config::LengthUnit::kEpochs && length.count >= config::kEpochsOfScripts) return;
  const std::string unit = config::word_of(config::kLengthUnits, length.unit);
  const Json& asked = at(run.plan, "/experiment/searcher/max_length"_json_pointer);
  const std::int64_t before = asked.is_object() ? number_at(asked, Json::json_pointer("/" + unit)) : 0;
  std::int64_t done = point.step;
  if (complete) {
    const auto in_batches = [&](const char* path) { return number_at(run.plan, Json::json_pointer(path)); };
    done = std::max({done, in_batches("/length/batches"), in_batches("/experiment/searcher/max_length/batches")});
  }
  const std::optional<std::int64_t> wanted = batches_of(experiment, run.plan);
  // A run that was stopped between its last batch and its final weights still writes these.
  const bool long_enough =
      wanted && done > 0 ? done < *wanted || (done == *wanted && !complete) : !complete || before < length.count;
  if (long_enough) return;
  const bool is_batches = length.unit == config::LengthUnit::kBatches;
  const std::string trained = done > 0 ? std::to_string(done) + " batches are done" : "it was trained to its end";
  throw ConfigError("the run " + run.folder.path.string() + (complete ? " is complete: " : " cannot go on: ") +
                        trained + "; the length, " + to_string(length) + ", is not greater",
                    "to train it further, give a greater length: --set searcher.max_length." + unit + "=" +
                        std::to_string(2 * (is_batches ? done : std::max(length.count, before))));
}

void check_virtual_ranks_stay(const ContinuedRun& run, const config::Experiment& experiment) {
  const auto before = [&](const char* key, int otherwise) {
    const Json value = at(run.plan, Json::json_pointer(std::string("/experiment/reproducibility/") + key));
    return value.is_number_integer() ? value.get<int>() : otherwise;
  };
  const int ranks = before("virtual_ranks", 0), threads = before("virtual_rank_threads", 1);
  const auto refuse = [&](const char* key, int was, int is) {
    throw ConfigError(
        "the run " + run.folder.path.string() + " has reproducibility." + key + ": " + std::to_string(was) +
            ", and cannot go on with " + std::to_string(is) + ", which gives other bits",
        "leave the key as it is; to change it, launch a new run with initial_weights: " + run.folder.path.string());
  };
  if (ranks != experiment.virtual_ranks) refuse("virtual_ranks", ranks, experiment.virtual_ranks);
  if (threads != experiment.virtual_rank_threads)
    refuse("virtual_rank_threads", threads, experiment.virtual_rank_threads);
}

void check_storage_stays(const ContinuedRun& run, const std::vector<std::string>& overrides,
                         const config::Experiment& experiment) {
  const bool names_one = std::any_of(overrides.begin(), overrides.end(), [&](const std::string& setting) {
    const bool is_old = std::find(run.overrides.begin(), run.overrides.end(), setting) != run.overrides.end();
    const std::string key = key_of(setting);
    return !is_old && (key == "checkpoint_storage" || key.starts_with("checkpoint_storage."));
  });
  if (!names_one) return;
  const fs::path own = run.folder.path / "checkpoints";
  const fs::path folder = find_checkpoint_folder(run.folder);
  if (folder == own && checkpoints::list(own).empty()) return;
  if (experiment.checkpoint_storage.folder == (folder == own ? fs::path() : folder.parent_path())) return;
  throw ConfigError(
      "checkpoint_storage has no effect on a run that has begun: its checkpoints stay in " + folder.string(),
      "leave its folder as it is; save_trial_latest and save_trial_best can be changed");
}

std::vector<std::string> differences_from(const ContinuedRun& run, const Json& plan) {
  const Json before = asked_of_training(run.plan), now = asked_of_training(plan);
  std::vector<std::string> lines;
  constexpr std::array kTrained{"/hyperparameters",
                                "/optimizer",
                                "/loss",
                                "/model",
                                "/data",
                                "/records_per_epoch",
                                "/searcher/metric",
                                "/searcher/smaller_is_better",
                                "/optimizations/aggregation_frequency",
                                "/optimizations/attention",
                                "/optimizations/average_aggregated_gradients",
                                "/optimizations/cudnn_benchmark",
                                "/optimizations/ema",
                                "/optimizations/gradient_compression",
                                "/optimizations/local_sgd",
                                "/optimizations/matmul",
                                "/optimizations/memory_format",
                                "/optimizations/operators",
                                "/optimizations/mixed_precision",
                                "/optimizations/tf32",
                                "/reproducibility/experiment_seed"};
  for (const char* path : kTrained) {
    const Json::json_pointer pointer{std::string(path)};
    std::string key = std::string(path).substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    add_difference(lines, key, at(before, pointer), at(now, pointer));
  }
  const auto add = [&](const std::string& was, const std::string& is, const std::string& why) {
    if (was == is) return;
    lines.push_back("the run was trained on " + was + " and is trained on " + is + " from here on: " + why +
                    ", so the result is not the same to the bit");
  };
  const Json virtual_ranks = at(plan, "/experiment/reproducibility/virtual_ranks"_json_pointer);
  const bool any_number = virtual_ranks.is_number() && virtual_ranks != 0;
  const std::int64_t batch_was = number_at(run.plan, "/effective_batch_size"_json_pointer);
  const std::int64_t batch_is = number_at(plan, "/effective_batch_size"_json_pointer);
  const bool is_of_script = at(plan, "/experiment/hyperparameters/batch_size_of_loader"_json_pointer) == Json(true);
  const bool same_batches = batch_was == batch_is || batch_was == 0 || is_of_script;
  if (!any_number) {
    add(ranks_text(run.plan), ranks_text(plan),
        same_batches ? "it has the same global batches, but sums are rounded differently"
                     : "a batch has " + count_of(batch_is, "sample") + " instead of " + std::to_string(batch_was) +
                           ", because it is divided evenly");
    const std::int64_t part_was = number_at(run.plan, "/batch_per_rank/0"_json_pointer);
    const std::int64_t part_is = number_at(plan, "/batch_per_rank/0"_json_pointer);
    if (!is_of_script && part_was > 0 && part_is > 0 && part_was != part_is) {
      lines.push_back("a rank has " + count_of(part_is, "sample") + " of each batch instead of " +
                      std::to_string(part_was) +
                      ": batch norm normalizes over these, and dropout draws other masks. Of small models with either, "
                      "weights differed by 1e-2 to 4e-1 after 40 batches, of others by less than 1e-6");
    }
  }
  add(slots_text(run.plan), slots_text(plan), "their arithmetic differs");
  return lines;
}

int attempt_number(const RunFolder& folder) {
  int number = 1;
  while (fs::exists(folder_aside(folder, number))) ++number;
  return number;
}

int put_aside(const RunFolder& folder, const Kept& kept) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.logs(), code)) end_torn_line(entry.path());
  const int number = attempt_number(folder);
  const fs::path aside = folder_aside(folder, number);
  make_folder(aside);
  const auto move = [&](const fs::path& path) {
    if (fs::exists(path)) fs::rename(path, aside / path.filename());
  };
  move(folder.logs());
  move(folder.profile());
  if (!kept.metrics) move(folder.metrics());
  make_folder(folder.logs());
  make_folder(folder.profile());
  const fs::path log = aside / folder.launcher_log().lexically_relative(folder.path);
  if (kept.launcher_log && fs::exists(log)) fs::rename(log, folder.launcher_log());
  return number;
}

}  // namespace dtrain::rank
