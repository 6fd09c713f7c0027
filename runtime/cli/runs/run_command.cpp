#include "runs/run_command.h"

#include <cstdio>

namespace dtrain::cli {

CLI::Option* add_run(CLI::App& command, std::string& run) {
  return command
      .add_option("RUN", run, "The run: a path, a number (3 or run:3) or name under ./runs, or its task (task:127)")
      ->required();
}

CLI::Option* add_json(CLI::App& command, bool& json) {
  return command.add_flag("--json", json, "As JSON");
}

void print_answer(bool json, const std::function<Json()>& for_programs,
                  const std::function<std::string()>& for_people) {
  const std::string text = json ? to_line(for_programs()) + "\n" : for_people();
  std::fputs(text.c_str(), stdout);
}

}  // namespace dtrain::cli
