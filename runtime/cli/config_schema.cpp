#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "commands.h"
#include "dtrain/config/schema.h"

namespace dtrain::cli {

void add_config_schema(CLI::App& config, int* exit_code) {
  auto kind = std::make_shared<std::string>();
  CLI::App* command = config.add_subcommand(
      "schema", "Print the JSON Schema of experiment or cluster files, for completion and checks in an editor");
  command->add_option("KIND", *kind, "The kind of file")->required()->check(CLI::IsMember({"experiment", "cluster"}));
  command->footer(
      "Write the schema:\n"
      "  dtrain config schema experiment > experiment.schema.json\n"
      "Name it in the first line of the experiment file:\n"
      "  # yaml-language-server: $schema=experiment.schema.json");
  command->callback([kind, exit_code] {
    const std::string_view text = *kind == "cluster" ? config::cluster_schema() : config::experiment_schema();
    std::fwrite(text.data(), 1, text.size(), stdout);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
