#include "dtrain/launcher/doctor.h"

#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/base/json.h"

namespace dtrain::cli {
namespace {

// Returns "dtrain 0.1.0, commit …", and a line for each library that dtrain uses.
std::string version_text() {
  std::string text;
  for (const auto& [name, value] : run::versions()) text += (text.empty() ? "" : "\n") + name + " " + value;
  return text;
}

}  // namespace

void add_version(CLI::App& app, ExitCode*) {
  app.set_version_flag("--version", version_text, "Print the version, as `dtrain version` does");
  CLI::App* command =
      app.add_subcommand("version", "Print the version of dtrain, and which libtorch, MPI and NCCL it finds");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([json] {
    if (*json) {
      Json object = Json::object();
      for (const auto& [name, value] : run::versions()) object[name] = value;
      std::printf("%s\n", to_line(object).c_str());
    } else {
      std::printf("%s\n", version_text().c_str());
    }
  });
}

}  // namespace dtrain::cli
