// dtrain: the command line. It links no torch, so that every command answers at once.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace {

constexpr const char* kExamples = R"(examples:
  dtrain config check experiment.yaml          is the file right?
  dtrain launch experiment.yaml --dry-run      what would run where?
  dtrain launch experiment.yaml                train, then say where the time went
  dtrain launch experiment.yaml --set resources.slots_per_trial=2 --set searcher.max_length.epochs=1
  dtrain slot list                             what can ranks run on?
  dtrain launch experiment.yaml --detach       go on without this terminal
  dtrain task list                             what runs, what waits, and for whom?
  dtrain logs 7 -f                             follow the logs of run 0007
  dtrain top 7                                 watch it: ranks, throughput, hosts
  dtrain summary 7                             where its time went
  dtrain analyze 7                             what to change, and what that will gain
  dtrain diff 7 8                              did it get slower, or is it noise?
  dtrain report 7                              the same with all charts, as one HTML file
  dtrain trace 7                               what every rank did when, for ui.perfetto.dev

`dtrain COMMAND --help` says more.)";

int print_error(const std::exception& error) {
  const bool bad_input = dynamic_cast<const dtrain::ConfigError*>(&error) != nullptr;
  std::fprintf(stderr, bad_input ? "%s\n" : "dtrain: %s\n", dtrain::describe(error).c_str());
  if (const auto* typed = dynamic_cast<const dtrain::Error*>(&error); typed && !typed->remedy().empty()) {
    std::fprintf(stderr, "  %s\n", typed->remedy().c_str());
  }
  return static_cast<int>(bad_input ? dtrain::ExitCode::kBadInput : dtrain::ExitCode::kRunFailed);
}

// CLI11 numbers its errors; here they are all bad input.
int usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const bool asked = error.get_exit_code() == 0;  // --help
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  const bool known = argc > 1 && std::find(names.begin(), names.end(), argv[1]) != names.end();
  if (!asked && argc > 1 && argv[1][0] != '-' && !known) {
    const auto near = dtrain::nearest(argv[1], names);
    std::fprintf(stderr, "dtrain: there is no command '%s'%s\n  the commands are: %s\n", argv[1],
                 near ? ("; did you mean " + *near + "?").c_str() : "", dtrain::join(names, ", ").c_str());
    return static_cast<int>(dtrain::ExitCode::kBadInput);
  }
  app.exit(error);
  return static_cast<int>(asked ? dtrain::ExitCode::kDone : dtrain::ExitCode::kBadInput);
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{
      "dtrain trains a libtorch model data-parallel on the slots of this machine or a cluster, and says where the time "
      "went.",
      "dtrain"};
  app.require_subcommand(1);
  using namespace dtrain::cli;
  for (const auto add :
       {add_launch,  add_config,     add_agent,   add_slot,    add_task,       add_logs,      add_top,
        add_summary, add_report,     add_analyze, add_what_if, add_diff,       add_trace,     add_export,
        add_doctor,  add_completion, add_version, add_man,     add_start_rank, add_host_probe})
    add(app, &exit_code);
  app.footer(kExamples);  // last: commands made after it would have it too
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  } catch (const std::exception& error) {
    return print_error(error);
  }
  return exit_code;
}
