// dtrain: the command line. It links no torch, so that every command answers at once.
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"

namespace {

constexpr const char* kExamples = R"(examples:
  dtrain config check experiment.yaml          is the file right?
  dtrain launch experiment.yaml --dry-run      what would run where?
  dtrain launch experiment.yaml                train, then show where the time went
  dtrain launch experiment.yaml --set resources.slots_per_trial=2 --set searcher.max_length.epochs=1
  dtrain slot list                             which slots are there, and which task holds them?
  dtrain launch experiment.yaml --detach       train in the background, without this terminal
  dtrain task list                             which tasks run, which wait, and for what?
  dtrain logs 7 -f                             follow the logs of run 0007
  dtrain top 7                                 watch the run: ranks, throughput, hosts
  dtrain summary 7                             show where the time of the run went
  dtrain analyze 7                             show what to change, and what that would gain
  dtrain diff 7 8                              did it get slower, or is it noise?
  dtrain report 7                              write the report with all charts, one HTML file
  dtrain report 7 8 9                          lay the curves of three runs over each other
  dtrain runs --sort best                      which runs are there, and which is the best?
  dtrain trace 7                               write the time line of all ranks, for ui.perfetto.dev
  dtrain checkpoint list 7                     which checkpoints does the run have, and which is the best?

Runs have numbers in ./runs; launches have task numbers. Commands for runs take 7 or run:7, and task:127 for the run of
a task; `dtrain task` takes 127 or task:127, and run:7 for the task of a run.

`dtrain COMMAND --help` shows more.)";

dtrain::ExitCode print_error(const std::exception& error) {
  const bool bad_input = dynamic_cast<const dtrain::ConfigError*>(&error) != nullptr;
  std::fprintf(stderr, bad_input ? "%s\n" : "dtrain: %s\n", dtrain::describe(error).c_str());
  if (const auto* typed = dynamic_cast<const dtrain::Error*>(&error); typed && !typed->remedy().empty()) {
    std::fprintf(stderr, "  %s\n", typed->remedy().c_str());
  }
  return bad_input ? dtrain::ExitCode::kBadInput : dtrain::ExitCode::kRunFailed;
}

// Returns the command to which the words led: `dtrain config check` for `dtrain config check --sett x`.
const CLI::App& deepest_command(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest_command(*chosen.front());
}

std::string full_command_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent ? full_command_name(*parent) + " " : "") + command.get_name();
}

std::vector<std::string> names_of_commands(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : command.get_subcommands(nullptr)) {
    if (!subcommand->get_group().empty()) names.push_back(subcommand->get_name());
  }
  return names;
}

std::string suggest_nearest(const std::string& prefix, const std::string& word, const std::vector<std::string>& names) {
  const auto near = dtrain::nearest(word, names);
  return near ? "; did you mean " + prefix + *near + "?" : "";
}

// Returns a word that is no option and no command of `command`; empty: the error is another one.
std::string describe_unknown(const CLI::App& command, const std::vector<std::string>& unknown) {
  for (const std::string& word : unknown) {
    if (word.size() < 2 || word[0] != '-' || word == "--") continue;
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back(name);
    }
    const std::string given = word.substr(0, word.find('='));
    const auto name = given.find_first_not_of('-');
    return "there is no option '" + given + "'" +
           (name == std::string::npos ? "" : suggest_nearest("--", given.substr(name), names)) + "\n  " +
           full_command_name(command) + " --help lists the options";
  }
  const std::vector<std::string> names = names_of_commands(command);
  if (unknown.empty() || names.empty()) return "";
  return "there is no command '" + unknown.front() + "'" + suggest_nearest("", unknown.front(), names) +
         "\n  the commands are: " + dtrain::join(names, ", ");
}

// CLI11 numbers its errors; here they are all bad input.
dtrain::ExitCode usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const auto print_own = [&] {  // with the streams of this program's output
    std::ostringstream out, errors;
    app.exit(error, out, errors);
    std::fputs(out.str().c_str(), stdout);
    std::fputs(errors.str().c_str(), stderr);
  };
  if (error.get_exit_code() == 0) {  // --help
    print_own();
    return dtrain::ExitCode::kDone;
  }
  // The unknown word is a better message than the argument that is missing because of it.
  const CLI::App& command = deepest_command(app);
  const std::string unknown = describe_unknown(command, app.remaining(true));
  if (unknown.empty()) {
    print_own();
  } else {
    std::fprintf(stderr, "%s: %s\n", full_command_name(command).c_str(), unknown.c_str());
  }
  return dtrain::ExitCode::kBadInput;
}

dtrain::ExitCode carry_out(int argc, char** argv) {
  auto exit_code = dtrain::ExitCode::kDone;
  CLI::App app{
      "dtrain trains a libtorch model data-parallel on the slots of this machine or a cluster, and shows where the "
      "time went.",
      "dtrain"};
  app.require_subcommand(1);
  for (const auto add : dtrain::cli::kCommands) add(app, &exit_code);
  app.footer(kExamples);  // last: commands made after it would have it too
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  } catch (const std::exception& error) {
    return print_error(error);
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::prepare_for_limits();
  try {
    dtrain::make_output_printable();
  } catch (const std::exception& error) {
    return static_cast<int>(print_error(error));
  }
  return static_cast<int>(dtrain::cli::finish_output(carry_out(argc, argv)));
}
