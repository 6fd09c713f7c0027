#include "commands.h"

namespace dtrain::cli {

void add_task(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("task", "List, stop, pause and wait for launches of this user on this machine");
  command->require_subcommand(1);
  add_task_list(*command, exit_code);
  add_task_show(*command, exit_code);
  add_task_kill(*command, exit_code);
  add_task_pause(*command, exit_code);
  add_task_activate(*command, exit_code);
  add_task_wait(*command, exit_code);
}

}  // namespace dtrain::cli
