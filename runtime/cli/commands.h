// The commands of dtrain, each in the file of its name or of its group. add_X() registers a command; its callback
// leaves another exit code than kDone in `exit_code`, or throws one of the errors of dtrain/base/error.h.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/process_interface.h"

namespace dtrain::cli {

void add_agent(CLI::App& app, ExitCode* exit_code);
void add_analyze(CLI::App& app, ExitCode* exit_code);
void add_board(CLI::App& app, ExitCode* exit_code);
void add_checkpoint(CLI::App& app, ExitCode* exit_code);
void add_checkpoint_delete(CLI::App& checkpoint);
void add_checkpoint_export(CLI::App& checkpoint, ExitCode* exit_code);
void add_completion(CLI::App& app, ExitCode* exit_code);
void add_launch(CLI::App& app, ExitCode* exit_code);
void add_start_rank(CLI::App& app, ExitCode* exit_code);
void add_config(CLI::App& app, ExitCode* exit_code);
void add_data(CLI::App& app, ExitCode* exit_code);
void add_diff(CLI::App& app, ExitCode* exit_code);
void add_doctor(CLI::App& app, ExitCode* exit_code);
void add_evaluate(CLI::App& app, ExitCode* exit_code);
void add_export(CLI::App& app, ExitCode* exit_code);
void add_follow(CLI::App& app, ExitCode* exit_code);
void add_host_probe(CLI::App& app, ExitCode* exit_code);
void add_cuda_probe(CLI::App& app, ExitCode* exit_code);
void add_logs(CLI::App& app, ExitCode* exit_code);
void add_man(CLI::App& app, ExitCode* exit_code);
void add_model(CLI::App& app, ExitCode* exit_code);
void add_predict(CLI::App& app, ExitCode* exit_code);
void add_report(CLI::App& app, ExitCode* exit_code);
void add_run_script(CLI::App& app, ExitCode* exit_code);
void add_runs_list(CLI::App& app, ExitCode* exit_code);
void add_slot(CLI::App& app, ExitCode* exit_code);
void add_summary(CLI::App& app, ExitCode* exit_code);
void add_task(CLI::App& app, ExitCode* exit_code);
void add_top(CLI::App& app, ExitCode* exit_code);
void add_trace(CLI::App& app, ExitCode* exit_code);
void add_what_if(CLI::App& app, ExitCode* exit_code);
void add_version(CLI::App& app, ExitCode* exit_code);

// The commands in the order of --help. All others are commands of one of these: `dtrain config check`.
inline constexpr std::array kCommands{add_launch,    add_run_script, add_config,     add_agent,      add_slot,
                                      add_task,      add_logs,       add_top,        add_board,      add_follow,
                                      add_runs_list, add_summary,    add_report,     add_analyze,    add_what_if,
                                      add_diff,      add_trace,      add_export,     add_checkpoint, add_evaluate,
                                      add_predict,   add_model,      add_data,       add_doctor,     add_completion,
                                      add_version,   add_man,        add_start_rank, add_host_probe, add_cuda_probe};

// Returns a text of process_interface.h without the backticks around code.
inline std::string plain(std::string text) {
  std::erase(text, '`');
  return text;
}

// Returns "Exit codes:" and an indented line for each, for --help.
inline std::string exit_codes_help(std::initializer_list<ExitCode> codes) {
  std::string help = "Exit codes:\n";
  for (const ExitCodeMeaning& meaning : kExitCodes) {
    if (std::find(codes.begin(), codes.end(), meaning.code) == codes.end()) continue;
    const std::string number = std::to_string(static_cast<int>(meaning.code));
    help += "  " + number + std::string(5 - number.size(), ' ') + plain(meaning.meaning) + "\n";
  }
  return help;
}

// At the end of main(): writes buffered output and returns the exit code. A command whose answer could not be written
// (a full disk) has failed: reports this on standard error and turns success into kRunFailed. A reader that has gone
// away
// (`dtrain task list | head -1`) is no error.
ExitCode finish_output(ExitCode exit_code);

// For a command whose result is not what it prints: only warns of lost output, and leaves the exit code as it is.
void warn_of_lost_output();

// Adds the argument RUN, for rank::find_run().
CLI::Option* add_run(CLI::App& command, std::string& run);
// Adds the same argument for one run or more.
CLI::Option* add_runs(CLI::App& command, std::vector<std::string>& runs);
CLI::Option* add_json(CLI::App& command, bool& json);

// The arguments of a command that describes one thing.
struct AnswerArguments {
  std::string name;
  bool json = false;
};

// Prints the answer as JSON or as text; the other form is not made.
void print_answer(bool json, const std::function<Json()>& for_programs, const std::function<std::string()>& for_people);

}  // namespace dtrain::cli
