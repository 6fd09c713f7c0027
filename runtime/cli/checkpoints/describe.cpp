#include <cstdio>
#include <memory>

#include "checkpoints/selection.h"
#include "commands.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/checkpoint/manifest.h"
#include "dtrain/data/safetensors.h"
#include "runs/run_command.h"
#include "table.h"

namespace dtrain::cli {
namespace {

struct DescribeArguments {
  std::string run;
  std::string step = "latest";
  bool json = false;
};

struct FileFacts {
  checkpoint::ManifestFile file;
  std::vector<data::SafetensorsEntry> tensors;
  std::string damage;  // why its tensors cannot be listed
};

std::vector<FileFacts> look_into(const checkpoint::Entry& entry) {
  std::vector<FileFacts> files;
  for (const checkpoint::ManifestFile& file : checkpoint::read_manifest(entry.path).files) {
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

Json describe_json(const checkpoint::Entry& entry) {
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

std::string row(std::string name, const std::string& value) {
  name.resize(14, ' ');
  return value.empty() ? "" : name + value + "\n";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> extents;
  for (const std::int64_t extent : shape) extents.push_back(std::to_string(extent));
  return shape.empty() ? "scalar" : join(extents, " x ");
}

// What the run has said about itself; nested values as JSON.
std::string run_text(const Json& run) {
  std::string text;
  if (!run.is_object()) return text;
  for (const auto& [key, value] : run.items()) {
    if (value.is_structured() && key == "experiment") continue;  // describe --json has it
    text += row("run " + key + " ", value.is_string() ? value.get<std::string>() : to_line(value));
  }
  return text;
}

std::string describe_text(const checkpoint::Entry& entry) {
  const checkpoint::About& about = entry.about;
  const auto time = std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(about.time));
  std::string text = row("checkpoint", entry.path.string());
  text += row("step", std::to_string(about.step) + " batches done, in epoch " + std::to_string(about.epoch));
  text +=
      row("saved", format_utc(time).substr(0, 19) + "Z" + (about.reason.empty() ? "" : ", reason: " + about.reason));
  text += row("metric", metric_text(about));
  text += row("ranks", std::to_string(about.world_size));
  text += row("size", format_bytes(static_cast<double>(entry.bytes)));
  text += row("damage", entry.damage);
  text += run_text(about.run);
  text += row("goes on", "`dtrain launch --continue RUN` goes on from a run's newest checkpoint: to the same bits on " +
                             std::to_string(about.world_size) + " ranks");
  text += row("", "`initial_weights: " + entry.path.string() + "` starts a new run with these weights");
  for (const FileFacts& facts : look_into(entry)) {
    text += "\n" + facts.file.name + ", " + format_bytes(static_cast<double>(facts.file.bytes)) + "\n";
    if (!facts.damage.empty()) text += "  damaged: " + facts.damage + "\n";
    if (facts.tensors.empty()) continue;
    Table table({{"tensor"}, {"dtype"}, {"shape"}, {"size", Table::Unit::kBytes}}, ListFormat::kText);
    for (const data::SafetensorsEntry& tensor : facts.tensors) {
      const std::string shape = shape_text(tensor.shape);
      table.add({tensor.name, tensor.dtype, shape, static_cast<std::int64_t>(tensor.bytes)});
    }
    text += table.finish();
  }
  return text;
}

}  // namespace

void add_checkpoint_describe(CLI::App& checkpoint, int* exit_code) {
  auto arguments = std::make_shared<DescribeArguments>();
  CLI::App* command =
      checkpoint.add_subcommand("describe", "Show what a checkpoint contains: its run, its files, their tensors");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->step, std::string(kStepHelp) + " (default: latest)");
  add_json(*command, arguments->json);
  command->callback([arguments, exit_code] {
    const Checkpoints found = find_checkpoints(arguments->run);
    const bool only_one = !found.run && arguments->step == "latest";  // also a damaged one
    const checkpoint::Entry& entry = only_one ? found.entries.front() : choose(found, arguments->step);
    print_answer(
        arguments->json, [&] { return describe_json(entry); }, [&] { return describe_text(entry); });
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
