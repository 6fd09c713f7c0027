#include <regex>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/model_files.h"

namespace dtrain::rank {

namespace fs = std::filesystem;

void check_model_files(const config::Experiment& experiment) {
  if (!experiment.model) return;
  for (const config::ModelFile& file : config::files_of(*experiment.model)) check_model_file(experiment, file);
}

void check_model_file(const config::Experiment& experiment, const config::ModelFile& model_file) {
  const fs::path& file = model_file.path;
  const std::string where = experiment.file.string() + ": " + model_file.key + ": ";
  std::error_code code;
  if (fs::is_regular_file(file, code)) return;
  if (fs::exists(file, code)) throw ConfigError(where + file.string() + " is no file", "name the model's file");
  const std::string name = "\"" + file.filename().string() + "\")";
  throw ConfigError(where + "there is no file " + file.string(),
                    "write it from Python with " +
                        (file.extension() == ".pt2" ? "torch.export.save(torch.export.export(model, inputs), " + name
                                                    : "torch.jit.script(model).save(" + name) +
                        "; a relative path is relative to the experiment file");
}

void check_kind(const config::Experiment& experiment, bool for_model) {
  if (for_model && !experiment.model) {
    throw ConfigError(experiment.file.string() + " has no `model:`, and dtrain-worker carries out no other experiments",
                      "dtrain launch starts the program that its entrypoint names");
  }
  if (!for_model && experiment.model) {
    throw ConfigError(experiment.file.string() + " has a `model:`, which only dtrain-worker carries out",
                      "start it with dtrain launch, or start dtrain-worker instead of this program");
  }
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";

enum class Source { kFile, kIndex, kCheckpoint, kRun };

bool is_there(const fs::path& file) {
  std::error_code code;
  return fs::exists(file, code);
}

// True also for a checkpoint without a manifest: verify() says what is wrong with it.
bool is_checkpoint(const fs::path& folder) {
  static const std::regex kName(R"((\.partial-|\.deleted-)?step-[0-9]+)");
  return is_there(folder / checkpoints::kManifestFile) || std::regex_match(folder.filename().string(), kName);
}

struct Found {
  Source source;
  fs::path path;
};

Found find_source(const config::InitialWeights& weights) {
  // "runs/0001-first/" has an empty last part.
  const fs::path path = weights.file.has_filename() ? weights.file : weights.file.parent_path();
  std::error_code code;
  if (!fs::exists(path, code)) {
    throw ConfigError("initial_weights: there is no file " + path.string(),
                      "a relative path is relative to the experiment file");
  }
  if (!fs::is_directory(path, code)) {
    return {path.string().ends_with(".index.json") ? Source::kIndex : Source::kFile, path};
  }
  if (is_checkpoint(path)) return {Source::kCheckpoint, path};
  if (is_there(path / "experiment.yaml") || is_there(path / "events.jsonl")) return {Source::kRun, path};
  if (is_there(path / checkpoints::kModelFile)) return {Source::kFile, path / checkpoints::kModelFile};
  if (is_there(path / kIndexFile)) return {Source::kIndex, path / kIndexFile};
  throw ConfigError(
      "initial_weights: " + path.string() + " is neither a checkpoint nor a run, and has no " + checkpoints::kModelFile,
      "name a .safetensors file, a checkpoint (…/checkpoints/step-120) or a run's folder");
}

void check_choice(const config::InitialWeights& weights, Source source) {
  if (weights.checkpoint == config::CheckpointChoice::kNewest || source == Source::kRun) return;
  throw ConfigError(
      "initial_weights.checkpoint: best has an effect with a run alone, and " + weights.file.string() + " is none",
      "leave it out, or name the run's folder");
}

// Reads Hugging Face's form: {"weight_map": {"layer.weight": "model-00001-of-00002.safetensors", …}}.
std::vector<fs::path> files_of_index(const fs::path& index) {
  const Json json = Json::parse(read_file(index), nullptr, false);
  const Json& map = object_at(json, "weight_map");
  if (map.empty()) throw DataError(index.string() + " is no index of safetensors files: it has no weight_map");
  std::set<fs::path> files;
  for (const auto& [tensor, file] : map.items()) {
    const fs::path name = file.is_string() ? fs::path(file.get<std::string>()) : fs::path();
    if (name.empty() || name != name.filename() || name.extension() != ".safetensors") {
      throw DataError(index.string() + ": weight_map: '" + tensor + "' is in " + file.dump() +
                      ", which is no name of a .safetensors file beside the index");
    }
    files.insert(index.parent_path() / name);
  }
  return {files.begin(), files.end()};
}

std::string lines_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

WeightFiles of_checkpoint(const fs::path& path) {
  const std::vector<std::string> wrong = checkpoints::verify(path);
  if (wrong.empty()) return {{path / checkpoints::kModelFile}, path.string(), {}, path};
  throw ConfigError("initial_weights: " + path.string() + " cannot be used:" + lines_of(wrong),
                    "name another checkpoint, or the run: its newest checkpoint that is whole is used then");
}

WeightFiles best_of_run(const fs::path& run) {
  WeightFiles found;
  const auto entries = checkpoints::list(checkpoints::storage_of_run(run));
  for (const checkpoints::Entry& entry : checkpoints::best_of(entries, static_cast<int>(entries.size()))) {
    const std::vector<std::string> wrong = checkpoints::verify(entry.path);
    if (wrong.empty()) {
      found.files = {entry.path / checkpoints::kModelFile};
      found.from = entry.path.string() + " (the best: " + entry.about.metric + " " +
                   Json(*entry.about.metric_value).dump() + ")";
      found.checkpoint = entry.path;
      return found;
    }
    found.passed_over.push_back(entry.path.filename().string() + ": " + wrong.front());
  }
  throw ConfigError("initial_weights: " + run.string() + " has no checkpoint with a value of searcher.metric" +
                        lines_of(found.passed_over),
                    "leave initial_weights.checkpoint out to start from the newest");
}

WeightFiles newest_of_run(const fs::path& run) {
  checkpoints::Newest newest = checkpoints::find_newest(checkpoints::storage_of_run(run));
  WeightFiles found{{}, {}, std::move(newest.passed_over), {}};
  const fs::path final_weights = run / "checkpoints" / "final" / checkpoints::kModelFile;
  if (newest.entry) {
    found.files = {newest.entry->path / checkpoints::kModelFile};
    found.from = newest.entry->path.string();
    found.checkpoint = newest.entry->path;
  } else if (is_there(final_weights)) {
    found.files = {final_weights};
    found.from = final_weights.string();
  } else {
    throw ConfigError("initial_weights: " + run.string() + " has neither a checkpoint nor final weights" +
                          lines_of(found.passed_over),
                      "name another run, or a file");
  }
  return found;
}

[[noreturn]] void refuse_weights_alone(const std::string& what, const std::vector<std::string>& passed_over = {}) {
  throw ConfigError("initial_weights.training_state: true needs a checkpoint, and " + what + " has weights alone" +
                        lines_of(passed_over),
                    "name a checkpoint (…/checkpoints/step-120) or a run that has one, or leave training_state out");
}

void check_state(const config::InitialWeights& weights, Source source) {
  const bool may_have_one = source == Source::kCheckpoint || source == Source::kRun;
  if (weights.training_state && !may_have_one) refuse_weights_alone(weights.file.string());
}

}  // namespace

WeightFiles find_weight_files(const config::InitialWeights& weights) {
  const auto [source, path] = find_source(weights);
  check_choice(weights, source);
  check_state(weights, source);
  switch (source) {
    case Source::kFile:
      break;
    case Source::kIndex:
      return {files_of_index(path), path.string(), {}, {}};
    case Source::kCheckpoint:
      return of_checkpoint(path);
    case Source::kRun: {
      WeightFiles found =
          weights.checkpoint == config::CheckpointChoice::kBest ? best_of_run(path) : newest_of_run(path);
      if (weights.training_state && found.checkpoint.empty()) refuse_weights_alone(found.from, found.passed_over);
      return found;
    }
  }
  return {{path}, path.string(), {}, {}};
}

void check_initial_weights(const config::InitialWeights& weights) {
  const Source source = find_source(weights).source;
  check_choice(weights, source);
  check_state(weights, source);
}

}  // namespace dtrain::rank
