#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/config/experiment.h"
#include "dtrain/scheduler/batch_split.h"

namespace dtrain::cli {
namespace {

struct Arguments {
  std::string file;
  std::vector<std::string> overrides;
};

void check(const Arguments& arguments) {
  const config::Experiment experiment = config::read_experiment(arguments.file, arguments.overrides);
  const int slots = experiment.resources.slots_per_trial;
  const auto split = scheduler::split_batch(experiment.global_batch_size, slots);
  if (!split.warning.empty()) std::fprintf(stderr, "dtrain: warning: %s\n", split.warning.c_str());
  std::printf("%s: ok: %s, %s, %d slot%s x %lld records a batch\n", arguments.file.c_str(), experiment.name.c_str(),
              config::to_string(experiment.searcher.max_length).c_str(), slots, slots == 1 ? "" : "s",
              static_cast<long long>(split.per_slot));
}

}  // namespace

void add_config(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("config", "Work with experiment files");
  command->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  CLI::App* check_command =
      command->add_subcommand("check", "Say everything that is wrong with an experiment file (exit code 2), or ok");
  check_command->add_option("FILE", arguments->file, "The experiment file (YAML)")->required();
  check_command->add_option("--set", arguments->overrides, "Override one key before checking (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  check_command->callback([arguments, exit_code] {
    check(*arguments);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
