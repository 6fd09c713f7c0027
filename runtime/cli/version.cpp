#include "dtrain/run/version.h"

#include <cstdio>

#include "commands.h"

namespace dtrain::cli {

void add_version(CLI::App& app, int* exit_code) {
  app.add_subcommand("version", "Print the version")->callback([exit_code] {
    std::printf("dtrain %s\n", run::version().c_str());
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
