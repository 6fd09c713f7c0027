#include "checkpoint_selection.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/run/checkpoint_folder.h"

namespace dtrain::cli {

namespace {

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

std::string steps_of(const Checkpoints& checkpoints) {
  std::vector<std::string> steps;
  for (const checkpoints::Entry& entry : checkpoints.entries) steps.push_back(std::to_string(entry.about.step));
  return steps.empty() ? "there are none" : "there are: " + join(steps, ", ");
}

}  // namespace

CLI::Option* add_run_or_checkpoint(CLI::App& command, std::string& run) {
  return command
      .add_option(
          "RUN", run,
          "The run: a path, a number (3 or run:3) or name under ./runs, or its task (task:127); or the folder of a "
          "checkpoint")
      ->required();
}

Checkpoints find_checkpoints(const std::string& name) {
  fs::path path = fs::absolute(name).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (is_checkpoint(path)) return {std::nullopt, path.parent_path(), {checkpoints::look_at(path)}};
  Checkpoints found{run::find_run(name), {}, {}};
  found.storage = run::find_checkpoint_folder(*found.run);
  found.entries = checkpoints::list(found.storage);
  return found;
}

const checkpoints::Entry& choose(const Checkpoints& checkpoints, const std::string& step) {
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
  bool shown = false;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (total == 0) return;
    shown = true;
    std::fprintf(stderr, "\r\033[K%s: %s of %s checked", step_text(entry).c_str(),
                 format_bytes(static_cast<double>(done)).c_str(), format_bytes(static_cast<double>(total)).c_str());
    std::fflush(stderr);
  };
  auto problems = checkpoints::verify(entry.path, show);
  if (shown) std::fputs("\r\033[K", stderr);
  return problems;
}

}  // namespace dtrain::cli
