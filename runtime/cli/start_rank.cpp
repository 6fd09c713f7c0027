#include "dtrain/run/start_rank.h"

#include "commands.h"
#include "dtrain/base/error.h"

namespace dtrain::cli {

void add_start_rank(CLI::App& app, int*) {
  CLI::App* command = app.add_subcommand("start-rank", "What mpirun and srun start for `dtrain launch`");
  command->group("");  // not for people
  command->prefix_command();
  command->callback([command] {
    if (command->remaining().empty()) throw ConfigError("dtrain start-rank: no program given");
    run::start_rank(command->remaining());
  });
}

}  // namespace dtrain::cli
