// The names and arguments of dtrain's commands, as plain values read from the same CLI11 objects that parse them and
// print --help: the source of shell completion and of the man page. Any thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace dtrain::cli {

enum class ValueKind { kNone, kText, kChoice, kFile, kFolder, kRun };

// An option, a flag (kNone), or an argument without a dash.
struct ValueFacts {
  std::vector<std::string> names;  // "-f", "--follow"; an argument's one name ("FILE")
  std::string value_name;          // the name of an option's value in --help: "DIR"
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices;  // with kChoice
  std::string description;
  bool required = false;
  bool repeatable = false;
};

struct CommandFacts {
  std::vector<std::string> path;  // "dtrain", "config", "check"
  std::string description;
  std::string footer;
  std::vector<ValueFacts> options;
  std::vector<ValueFacts> arguments;
  std::vector<CommandFacts> commands;  // hidden ones are left out
};

// Reads the facts. The kind of a value follows from its name in --help: FILE and EXPERIMENT are files, DIR a folder,
// RUN a run; a set of choices (CLI::IsMember) is that set.
CommandFacts read_facts(const CLI::App& app);

// "dtrain config check"
std::string full_name(const CommandFacts& command);

}  // namespace dtrain::cli
