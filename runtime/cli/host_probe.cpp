#include "dtrain/run/host_probe.h"

#include "commands.h"

namespace dtrain::cli {

void add_host_probe(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("host-probe", "Report what this host has to the dtrain of another host");
  command->group("");  // for dtrain itself
  command->callback([exit_code] { *exit_code = run::host_probe(); });
}

}  // namespace dtrain::cli
