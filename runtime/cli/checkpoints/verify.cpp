#include <cstdio>
#include <memory>

#include "checkpoints/selection.h"
#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct VerifyArguments {
  std::string run, step;
  bool json = false;
};

}  // namespace

void add_checkpoint_verify(CLI::App& checkpoint, int* exit_code) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = checkpoint.add_subcommand(
      "verify", "Read every byte of checkpoints and compare it with the checksums; exit code 1 where one is damaged");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->step, std::string(kStepHelp) + " (default: all of the run)");
  add_json(*command, arguments->json);
  command->callback([arguments, exit_code] {
    const Checkpoints found = find_checkpoints(arguments->run);
    std::vector<checkpoints::Entry> wanted = found.entries;
    if (!arguments->step.empty()) wanted = {choose(found, arguments->step)};
    if (wanted.empty()) throw ConfigError("there are no checkpoints in " + found.storage.string());
    Json answer = Json::array();
    bool damaged = false;
    for (const checkpoints::Entry& entry : wanted) {
      const auto problems = verify_visibly(entry);
      damaged |= !problems.empty();
      answer.push_back({{"step", entry.about.step}, {"path", entry.path.string()}, {"problems", problems}});
      if (arguments->json) continue;
      const std::string what =
          problems.empty() ? "whole, " + format_bytes(static_cast<double>(entry.bytes)) : "DAMAGED";
      std::printf("%s: %s\n", step_text(entry).c_str(), what.c_str());
      for (const std::string& problem : problems) std::printf("  %s\n", problem.c_str());
    }
    if (arguments->json) std::printf("%s\n", to_line(answer).c_str());
    *exit_code = static_cast<int>(damaged ? ExitCode::kRunFailed : ExitCode::kDone);
  });
}

}  // namespace dtrain::cli
