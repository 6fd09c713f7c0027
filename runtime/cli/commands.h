// The commands of dtrain, each in the file of its name or of its group. add_X() registers a command; its callback
// leaves another exit code than kDone in `exit_code`, or throws one of the errors of dtrain/base/error.h.
#pragma once

#include <array>

#include <CLI/CLI.hpp>

#include "dtrain/base/error.h"

namespace dtrain::cli {

void add_agent(CLI::App& app, ExitCode* exit_code);
void add_analyze(CLI::App& app, ExitCode* exit_code);
void add_checkpoint(CLI::App& app, ExitCode* exit_code);
void add_checkpoint_delete(CLI::App& checkpoint);
void add_checkpoint_describe(CLI::App& checkpoint);
void add_checkpoint_export(CLI::App& checkpoint, ExitCode* exit_code);
void add_completion(CLI::App& app, ExitCode* exit_code);
void add_launch(CLI::App& app, ExitCode* exit_code);
void add_start_rank(CLI::App& app, ExitCode* exit_code);
void add_config(CLI::App& app, ExitCode* exit_code);
void add_data(CLI::App& app, ExitCode* exit_code);
void add_data_bench(CLI::App& data);
void add_data_inspect(CLI::App& data, ExitCode* exit_code);
void add_data_pack(CLI::App& data);
void add_data_show(CLI::App& data);
void add_diff(CLI::App& app, ExitCode* exit_code);
void add_doctor(CLI::App& app, ExitCode* exit_code);
void add_export(CLI::App& app, ExitCode* exit_code);
void add_host_probe(CLI::App& app, ExitCode* exit_code);
void add_cuda_probe(CLI::App& app, ExitCode* exit_code);
void add_logs(CLI::App& app, ExitCode* exit_code);
void add_man(CLI::App& app, ExitCode* exit_code);
void add_model(CLI::App& app, ExitCode* exit_code);
void add_report(CLI::App& app, ExitCode* exit_code);
void add_run_script(CLI::App& app, ExitCode* exit_code);
void add_runs_list(CLI::App& app, ExitCode* exit_code);
void add_slot(CLI::App& app, ExitCode* exit_code);
void add_summary(CLI::App& app, ExitCode* exit_code);
void add_task(CLI::App& app, ExitCode* exit_code);
void add_task_list(CLI::App& task);
void add_task_show(CLI::App& task);
void add_top(CLI::App& app, ExitCode* exit_code);
void add_trace(CLI::App& app, ExitCode* exit_code);
void add_what_if(CLI::App& app, ExitCode* exit_code);
void add_version(CLI::App& app, ExitCode* exit_code);

// The commands in the order of --help. All others are commands of one of these: `dtrain config check`.
inline constexpr std::array kCommands{
    add_launch,  add_run_script, add_config,     add_agent,      add_slot,      add_task,    add_logs,
    add_top,     add_runs_list,  add_summary,    add_report,     add_analyze,   add_what_if, add_diff,
    add_trace,   add_export,     add_checkpoint, add_model,      add_data,      add_doctor,  add_completion,
    add_version, add_man,        add_start_rank, add_host_probe, add_cuda_probe};

}  // namespace dtrain::cli
