#include "commands.h"

namespace dtrain::cli {

void add_config(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("config", "Work with experiment and cluster files");
  command->require_subcommand(1);
  add_config_check(*command, exit_code);
  add_config_schema(*command, exit_code);
}

}  // namespace dtrain::cli
