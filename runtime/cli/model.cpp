#include "commands.h"

#include <memory>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::cli {
namespace {

struct ModelInspectArguments {
  std::string file;
  bool json = false;
};

// Only dtrain-worker has libtorch, which knows the operators.
int inspect(const ModelInspectArguments& arguments) {
  static const char inside_this_program = 0;
  ProcessOptions options;
  options.command = {find_program_beside(&inside_this_program, "dtrain-worker").string(), "--inspect", arguments.file};
  if (arguments.json) options.command.emplace_back("--json");
  options.new_process_group = false;  // Ctrl-C ends both
  const ExitStatus status = Process::start(options).wait();
  if (status.signal == 0) return status.code;
  throw Error("dtrain-worker --inspect was " + status.describe());
}

}  // namespace

void add_model(CLI::App& app, int* exit_code) {
  CLI::App* model = app.add_subcommand("model", "Look at the files that `model:` names");
  model->require_subcommand(1);
  auto arguments = std::make_shared<ModelInspectArguments>();
  CLI::App* command = model->add_subcommand(
      "inspect",
      "Show the inputs, outputs, parameters and operators of a file of torch.export, and whether it can be "
      "trained and evaluated");
  command->add_option("FILE", arguments->file, "The file, as torch.export.save() writes it (.pt2)")->required();
  command->add_flag("--json", arguments->json, "One line of JSON");
  command->footer("A file that cannot be trained is an error that names what is not supported.");
  command->callback([arguments, exit_code] { *exit_code = inspect(*arguments); });
}

}  // namespace dtrain::cli
