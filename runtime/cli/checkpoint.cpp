#include "checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "commands.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/data/safetensors.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "table.h"

namespace dtrain::cli {
namespace {

Nanoseconds when(const checkpoints::About& about) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(about.time));
}

struct Marks {
  std::optional<std::int64_t> best, latest;
};

Marks marks_of(const std::vector<checkpoints::Entry>& entries) {
  Marks marks;
  if (const auto best = checkpoints::best_of(entries, 1); !best.empty()) marks.best = best.front().about.step;
  for (const checkpoints::Entry& entry : entries) {
    if (entry.damage.empty()) marks.latest = entry.about.step;
  }
  return marks;
}

Json list_json(const NamedCheckpoints& found) {
  const Marks marks = marks_of(found.entries);
  const SystemClock clock;
  Json list = Json::array();
  for (const checkpoints::Entry& entry : found.entries) {
    Json json = to_json(entry);
    json["age_s"] = entry.about.time > 0 ? Json(to_seconds(clock.wall()) - entry.about.time) : Json();
    json["best"] = marks.best == entry.about.step;
    json["latest"] = marks.latest == entry.about.step;
    list.push_back(std::move(json));
  }
  return list;
}

std::string list_text(const NamedCheckpoints& found) {
  if (found.entries.empty()) return "no checkpoints in " + found.storage.string() + "\n";
  const Marks marks = marks_of(found.entries);
  const SystemClock clock;
  Table table(
      {{"step"}, {"epoch"}, {"saved"}, {"age"}, {"size", Table::Unit::kBytes}, {"metric"}, {"mark"}, {"damage"}},
      ListFormat::kText);
  for (const checkpoints::Entry& entry : found.entries) {
    const bool known = entry.about.time > 0;
    std::vector<std::string_view> mark;
    if (marks.best == entry.about.step) mark.emplace_back("best");
    if (marks.latest == entry.about.step) mark.emplace_back("latest");
    if (!entry.not_finite.empty()) mark.emplace_back("not finite");
    const std::string saved = format_utc(when(entry.about)).substr(0, 19) + "Z";
    const std::string age = format_duration(clock.wall() - when(entry.about));
    const std::string metric = metric_text(entry.about);
    table.add({entry.about.step, known ? Cell(entry.about.epoch + 1) : Cell(), known ? Cell(saved) : Cell(),
               known ? Cell(age) : Cell(), entry.bytes > 0 ? Cell(entry.bytes) : Cell(),
               metric.empty() ? Cell() : Cell(metric), mark.empty() ? Cell() : Cell(mark),
               entry.damage.empty() ? Cell() : Cell(entry.damage)});
  }
  return table.finish();
}

void add_checkpoint_list(CLI::App& checkpoint) {
  auto arguments = std::make_shared<AnswerArguments>();
  CLI::App* command = checkpoint.add_subcommand("list", "List the checkpoints of a run, the oldest first");
  add_run(*command, arguments->name);
  add_json(*command, arguments->json);
  command->footer(
      "Looks at manifests and sizes only; `dtrain checkpoint verify` reads every byte. The best checkpoint is that "
      "with the best\nsearcher.metric, the latest is what `dtrain launch --continue` goes on from. "
      "Weights of one that is\nnot finite have become NaN or infinite: `dtrain checkpoint describe` names one.");
  command->callback([arguments] {
    const NamedCheckpoints found = find_checkpoints(arguments->name);
    print_answer(
        arguments->json, [&] { return list_json(found); }, [&] { return list_text(found); });
  });
}

// The arguments of `verify` and `describe`.
struct CheckpointArguments {
  std::string run, step;
  bool json = false;
};

void add_checkpoint_verify(CLI::App& checkpoint, ExitCode* exit_code) {
  auto arguments = std::make_shared<CheckpointArguments>();
  CLI::App* command = checkpoint.add_subcommand(
      "verify", "Read every byte of checkpoints and compare it with the checksums; exit code 1 where one is damaged");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->step, std::string(kStepHelp) + " (default: all of the run)");
  add_json(*command, arguments->json);
  command->callback([arguments, exit_code] {
    const NamedCheckpoints found = find_checkpoints(arguments->run);
    std::vector<checkpoints::Entry> wanted = found.entries;
    if (!arguments->step.empty()) wanted = {choose(found, arguments->step)};
    if (wanted.empty()) throw ConfigError("there are no checkpoints in " + found.storage.string());
    Json answer = Json::array();
    bool damaged = false;
    for (const checkpoints::Entry& entry : wanted) {
      const auto problems = verify_visibly(entry);
      damaged |= !problems.empty();
      answer.push_back({{"step", entry.about.step}, {"path", entry.path.string()}, {"problems", problems}});
      if (arguments->json) continue;
      const std::string what =
          problems.empty() ? "whole, " + format_bytes(static_cast<double>(entry.bytes)) : "DAMAGED";
      std::printf("%s: %s\n", step_text(entry).c_str(), what.c_str());
      for (const std::string& problem : problems) std::printf("  %s\n", problem.c_str());
    }
    if (arguments->json) std::printf("%s\n", to_line(answer).c_str());
    *exit_code = damaged ? ExitCode::kRunFailed : ExitCode::kDone;
  });
}

struct FileFacts {
  checkpoints::ManifestFile file;
  std::vector<data::SafetensorsEntry> tensors;
  std::string damage;  // the reason why tensors cannot be listed
};

std::vector<FileFacts> look_into(const checkpoints::Entry& entry) {
  std::vector<FileFacts> files;
  for (const checkpoints::ManifestFile& file : checkpoints::read_manifest(entry.path).files) {
    FileFacts facts{file, {}, {}};
    if (file.name.ends_with(".safetensors") && file.bytes > 0) {
      try {
        facts.tensors = data::SafetensorsFile(entry.path / file.name).entries();
      } catch (const Error& error) {
        facts.damage = error.what();
      }
    }
    files.push_back(std::move(facts));
  }
  return files;
}

Json describe_json(const checkpoints::Entry& entry) {
  Json json = to_json(entry);
  Json files = Json::array();
  for (const FileFacts& facts : look_into(entry)) {
    Json tensors = Json::array();
    for (const data::SafetensorsEntry& tensor : facts.tensors) {
      tensors.push_back(
          {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
    }
    files.push_back({{"name", facts.file.name}, {"bytes", facts.file.bytes}, {"tensors", std::move(tensors)}});
    if (!facts.damage.empty()) files.back()["damage"] = facts.damage;
  }
  json["files"] = std::move(files);
  return json;
}

// Lines of names and their values. A name without a value gets no line.
class CheckpointFacts {
 public:
  void add(const std::string& name, const std::string& value) {
    if (!value.empty()) rows_.emplace_back(name, value);
  }
  std::string text() const {
    std::size_t width = 0;
    for (const auto& [name, value] : rows_) width = std::max(width, name.size() + 2);
    std::string text;
    for (const auto& [name, value] : rows_) text += name + std::string(width - name.size(), ' ') + value + "\n";
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> extents;
  for (const std::int64_t extent : shape) extents.push_back(std::to_string(extent));
  return shape.empty() ? "scalar" : join(extents, " x ");
}

std::string words_for(const std::string& key) {
  static const std::map<std::string, std::string> kWords{{"name", "run"},
                                                         {"global_batch_size", "batch size"},
                                                         {"cpu_capability", "instruction set"},
                                                         {"threads", "threads a rank"}};
  const auto known = kWords.find(key);
  if (known != kWords.end()) return known->second;
  std::string words = key;
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

// Adds the entries of the run's own description; nested values as JSON.
void add_run(const Json& run, CheckpointFacts& facts) {
  if (!run.is_object()) return;
  for (const auto& [key, value] : run.items()) {
    if (value.is_null() || (value.is_structured() && key == "experiment")) continue;  // describe --json has it
    facts.add(words_for(key), value.is_string() ? value.get<std::string>() : to_line(value));
  }
}

std::string describe_text(const checkpoints::Entry& entry) {
  const checkpoints::About& about = entry.about;
  const auto time = std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(about.time));
  CheckpointFacts facts;
  facts.add("checkpoint", entry.path.string());
  facts.add("step", std::to_string(about.step) + " batches done, in epoch " + std::to_string(about.epoch + 1));
  facts.add("saved", format_utc(time).substr(0, 19) + "Z" + (about.reason.empty() ? "" : ", reason: " + about.reason));
  facts.add("metric", metric_text(about));
  facts.add("ranks", std::to_string(about.world_size));
  facts.add("size", format_bytes(static_cast<double>(entry.bytes)));
  facts.add("damage", entry.damage);
  facts.add("not finite", entry.not_finite);
  add_run(about.run, facts);
  facts.add("goes on", "`dtrain launch --continue RUN` goes on from a run's newest checkpoint: to the same bits on " +
                           count_of(about.world_size, "rank"));
  facts.add("", "`initial_weights: " + entry.path.string() + "` starts a new run with these weights");
  std::string text = facts.text();
  for (const FileFacts& file : look_into(entry)) {
    text += "\n" + file.file.name + ", " + format_bytes(static_cast<double>(file.file.bytes)) + "\n";
    if (!file.damage.empty()) text += "  damaged: " + file.damage + "\n";
    if (file.tensors.empty()) continue;
    Table table({{"tensor"}, {"dtype"}, {"shape"}, {"size", Table::Unit::kBytes}}, ListFormat::kText);
    for (const data::SafetensorsEntry& tensor : file.tensors) {
      const std::string shape = shape_text(tensor.shape);
      table.add({tensor.name, tensor.dtype, shape, static_cast<std::int64_t>(tensor.bytes)});
    }
    text += table.finish();
  }
  return text;
}

void add_checkpoint_describe(CLI::App& checkpoint) {
  auto arguments = std::make_shared<CheckpointArguments>();
  CLI::App* command =
      checkpoint.add_subcommand("describe", "Show what a checkpoint contains: its run, its files, their tensors");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->step, std::string(kStepHelp) + " (default: latest)");
  add_json(*command, arguments->json);
  command->callback([arguments] {
    const NamedCheckpoints found = find_checkpoints(arguments->run);
    const checkpoints::Entry& entry = choose(found, arguments->step);
    print_answer(
        arguments->json, [&] { return describe_json(entry); }, [&] { return describe_text(entry); });
  });
}

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) {
  std::error_code code;
  return fs::is_directory(path, code) &&
         (path.filename().string().starts_with("step-") || fs::exists(path / checkpoints::kManifestFile, code));
}

// "step-120" is also the folder's name.
std::optional<std::int64_t> number_of(std::string_view step) {
  constexpr std::string_view kFolder = "step-";
  if (step.starts_with(kFolder)) step.remove_prefix(kFolder.size());
  const auto number = to_number<std::int64_t>(step);
  return number && *number >= 0 ? number : std::nullopt;
}

std::string steps_of(const NamedCheckpoints& checkpoints) {
  std::vector<std::string> steps;
  for (const checkpoints::Entry& entry : checkpoints.entries) steps.push_back(std::to_string(entry.about.step));
  return steps.empty() ? "there are none" : "there are: " + join(steps, ", ");
}

}  // namespace

void add_checkpoint(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("checkpoint", "List, check, delete and export the checkpoints of a run");
  command->require_subcommand(1);
  add_checkpoint_list(*command);
  add_checkpoint_describe(*command);
  add_checkpoint_verify(*command, exit_code);
  add_checkpoint_delete(*command);
  add_checkpoint_export(*command, exit_code);
  command->footer(R"(examples:
  dtrain checkpoint list 7                     which checkpoints does run 0007 have, and which is the best?
  dtrain checkpoint describe 7 best            what is in the best one?
  dtrain checkpoint verify 7                   is every byte of every checkpoint as it was written?
  dtrain checkpoint export 7 --best --output model.safetensors   the best weights, for other programs
  dtrain checkpoint delete 7 120 140           free the space of two of them)");
}

CLI::Option* add_run_or_checkpoint(CLI::App& command, std::string& run) {
  return command
      .add_option(
          "RUN", run,
          "The run: a path, a number (3 or run:3) or name under ./runs, or its task (task:127); or the folder of a "
          "checkpoint")
      ->required();
}

NamedCheckpoints find_checkpoints(const std::string& name) {
  fs::path path = fs::absolute(name).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (is_checkpoint(path)) return {std::nullopt, path.parent_path(), {checkpoints::look_at(path)}};
  NamedCheckpoints found{rank::find_run(name), {}, {}};
  found.storage = rank::find_checkpoint_folder(*found.run);
  found.entries = checkpoints::list(found.storage);
  return found;
}

const checkpoints::Entry& choose(const NamedCheckpoints& checkpoints, const std::string& step) {
  const auto& entries = checkpoints.entries;
  const auto there = [&](std::int64_t wanted) {
    return std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.about.step == wanted; });
  };
  const std::string in = " in " + checkpoints.storage.string();
  const std::optional<std::int64_t> number = number_of(step);
  if (!checkpoints.run) {
    const checkpoints::Entry& only = entries.front();
    if (step.empty() || number == only.about.step) return only;
    throw ConfigError(only.path.string() + " is one checkpoint, so '" + step + "' cannot be chosen from it",
                      "leave " + step + " out, or name the run instead of the folder");
  }
  if (step.empty() || step == "latest") {
    const auto whole = std::find_if(entries.rbegin(), entries.rend(), [](const auto& e) { return e.damage.empty(); });
    if (whole != entries.rend()) return *whole;
    throw ConfigError("there is no checkpoint that can be used" + in, entries.empty() ? "" : "all are damaged");
  }
  if (step == "best") {
    const auto best = checkpoints::best_of(entries, 1);
    if (!best.empty()) return *there(best.front().about.step);
    throw ConfigError("no checkpoint" + in + " has a metric", "name a step or latest; " + steps_of(checkpoints));
  }
  if (!number) {
    throw ConfigError("'" + step + "' names no checkpoint",
                      "it is a number of batches (120 or step-120), best or latest; " + steps_of(checkpoints));
  }
  const auto found = there(*number);
  if (found == entries.end()) {
    throw ConfigError("there is no checkpoint of step " + std::to_string(*number) + in, steps_of(checkpoints));
  }
  return *found;
}

std::string step_text(const checkpoints::Entry& entry) {
  return "step " + std::to_string(entry.about.step);
}

std::string metric_text(const checkpoints::About& about) {
  if (!about.metric_value) return "";
  char value[32];
  std::snprintf(value, sizeof value, "%.6g", *about.metric_value);
  return about.metric + " = " + value;
}

Json to_json(const checkpoints::Entry& entry) {
  Json json = checkpoints::to_json(entry.about);
  json["path"] = entry.path.string();
  json["bytes"] = entry.bytes;
  json["damage"] = entry.damage.empty() ? Json() : Json(entry.damage);
  json["not_finite"] = entry.not_finite.empty() ? Json() : Json(entry.not_finite);
  return json;
}

std::vector<std::string> verify_visibly(const checkpoints::Entry& entry) {
  if (::isatty(STDERR_FILENO) == 0) return checkpoints::verify(entry.path);
  const std::string kEraseLine = "\r\x1b[K";
  bool shown = false;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (total == 0) return;
    shown = true;
    write_all(STDERR_FILENO, kEraseLine + step_text(entry) + ": " + format_bytes(static_cast<double>(done)) + " of " +
                                 format_bytes(static_cast<double>(total)) + " checked");
  };
  auto problems = checkpoints::verify(entry.path, show);
  if (shown) write_all(STDERR_FILENO, kEraseLine);
  return problems;
}

}  // namespace dtrain::cli
