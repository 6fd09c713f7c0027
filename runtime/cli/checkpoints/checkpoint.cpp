#include "commands.h"

namespace dtrain::cli {

void add_checkpoint(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("checkpoint", "List, check, delete and export the checkpoints of a run");
  command->require_subcommand(1);
  add_checkpoint_list(*command, exit_code);
  add_checkpoint_describe(*command, exit_code);
  add_checkpoint_verify(*command, exit_code);
  add_checkpoint_delete(*command, exit_code);
  add_checkpoint_export(*command, exit_code);
  command->footer(R"(examples:
  dtrain checkpoint list 7                     which checkpoints does run 0007 have, and which is the best?
  dtrain checkpoint describe 7 best            what is in the best one?
  dtrain checkpoint verify 7                   is every byte of every checkpoint as it was written?
  dtrain checkpoint export 7 --best --output model.safetensors   the best weights, for other programs
  dtrain checkpoint delete 7 120 140           free the space of two of them)");
}

}  // namespace dtrain::cli
