#include "commands.h"

namespace dtrain::cli {

void add_data(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("data", "Pack, inspect, measure and show data sets of pictures");
  command->require_subcommand(1);
  add_data_pack(*command);
  add_data_inspect(*command, exit_code);
  add_data_bench(*command);
  add_data_show(*command);
  command->footer(R"(examples:
  dtrain data pack photos/train -o shards      a folder with a folder for each class as tar shards
  dtrain data inspect 'shards/shard-*.tar'     how many samples, classes and sizes; --check decodes them all
  dtrain data show experiment.yaml             a page with pictures as the model sees them
  dtrain data bench experiment.yaml            samples a second for numbers of workers, and what the limit is)");
}

}  // namespace dtrain::cli
