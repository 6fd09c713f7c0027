// Commands for dtrain itself, which --help does not list: it starts them on other hosts, or in a process of their own.
#include <memory>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/launcher/internal_commands.h"

namespace dtrain::cli {

void add_start_rank(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("start-rank", "What mpirun and srun start for `dtrain launch`");
  command->group("");
  command->prefix_command();
  command->callback([command] {
    if (command->remaining().empty()) throw ConfigError("dtrain start-rank: no program given");
    run::start_rank(command->remaining());
  });
}

void add_host_probe(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("host-probe", "Report what this host has to the dtrain of another host");
  command->group("");
  command->callback([exit_code] { *exit_code = run::host_probe(); });
}

void add_cuda_probe(CLI::App& app, ExitCode*) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("cuda-probe", "Open the libraries that training on GPUs needs");
  command->group("");
  command->add_option("FOLDER", *folder, "The folder of libtorch's libraries");
  command->callback([folder] { run::cuda_probe(*folder); });
}

}  // namespace dtrain::cli
