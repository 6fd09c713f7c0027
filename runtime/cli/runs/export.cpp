#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/analysis/export.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct ExportArguments {
  std::string run, format, output;
};

}  // namespace

void add_export(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write the records of a run in a format for other programs");
  add_run(*command, arguments->run);
  command->add_option("--format", arguments->format, "The format")
      ->required()
      ->check(CLI::IsMember({"sqlite", "csv", "tensorboard"}));
  command
      ->add_option(
          "-o,--output", arguments->output,
          "Where to write: a file for sqlite (default: profile.db in the run's folder), a folder for csv (default: "
          "tables in it) and tensorboard (default: tensorboard in it)")
      ->type_name("PATH");
  command->callback([arguments] {
    const std::filesystem::path folder = run::find_run(arguments->run).path;
    const auto target = [&](const char* name) {
      return arguments->output.empty() ? folder / name : std::filesystem::path(arguments->output);
    };
    const analysis::RunProfile profile = analysis::load_run(folder);
    for (const std::string& warning : profile.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    if (arguments->format == "tensorboard") {
      const auto path = target("tensorboard");
      const auto done = analysis::export_tensorboard(profile, path);
      std::printf("%lld values in %zu event files: tensorboard --logdir %s\n", static_cast<long long>(done.rows),
                  done.files.size(), path.c_str());
    } else {
      const bool sqlite = arguments->format == "sqlite";
      const auto path = target(sqlite ? "profile.db" : "tables");
      const auto done = sqlite ? analysis::export_sqlite(profile, path) : analysis::export_csv(profile, path);
      std::printf("%lld rows in %zu tables: %s\n", static_cast<long long>(done.rows), analysis::run_tables().size(),
                  path.c_str());
    }
  });
}

}  // namespace dtrain::cli
