#include <cstdio>

#include "commands.h"
#include "dtrain/run/version.h"
#include "share/man_page.h"

namespace dtrain::cli {

void add_man(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("man", "Print the man page (troff)");
  command->group("");  // for the build: users have `man dtrain`
  command->callback([&app, exit_code] {
    std::fputs(man_page(read_facts(app), run::version()).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
