#include "share/completion.h"

#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"

namespace dtrain::cli {

void add_completion(CLI::App& app, int* exit_code) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print the completion script for a shell");
  command->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->footer(
      "To use it in the current shell:    source <(dtrain completion bash)\n"
      "An installed package has put both scripts where the shells look for them.");
  command->callback([&app, shell, exit_code] {
    const CommandFacts facts = read_facts(app);
    std::fputs((*shell == "bash" ? bash_completion(facts) : zsh_completion(facts)).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
