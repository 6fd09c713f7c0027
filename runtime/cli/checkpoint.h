// The ways in which arguments of the commands on checkpoints name checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {

// The argument RUN: a run, as rank::find_run() finds it, or the folder of a checkpoint.
CLI::Option* add_run_or_checkpoint(CLI::App& command, std::string& run);
inline constexpr const char* kStepHelp =
    "Which checkpoint: the number of batches done (120 or step-120), best or latest";

// The checkpoints that such an argument names: all checkpoints of a run, or one.
struct NamedCheckpoints {
  std::optional<rank::RunFolder> run;  // empty: a checkpoint's folder was named
  std::filesystem::path storage;
  std::vector<checkpoints::Entry> entries;  // the oldest first
};
// ConfigError: there is no such run.
NamedCheckpoints find_checkpoints(const std::string& name);

// Returns the checkpoint that `step` ("120", "step-120", "best", "latest") names. `latest` is the newest that nothing
// is known against. Without `step` returns the latest of a run, or the checkpoint whose folder was named, also a
// damaged one. ConfigError lists the steps that there are.
const checkpoints::Entry& choose(const NamedCheckpoints& checkpoints, const std::string& step);

// "step 120"
std::string step_text(const checkpoints::Entry& entry);
// "loss = 0.25"; empty: it was not validated.
std::string metric_text(const checkpoints::About& about);
Json to_json(const checkpoints::Entry& entry);

// Checks the file that a command is to write, before it begins. `output`: absolute. ConfigError: it cannot be made, or
// it exists and is not to be replaced.
void check_output(const std::filesystem::path& output, bool replaces);

// Verifies the checkpoint, with a line of progress on a terminal.
std::vector<std::string> verify_visibly(const checkpoints::Entry& entry);

}  // namespace dtrain::cli
