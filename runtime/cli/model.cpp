#include "commands.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::cli {
namespace {

struct ModelInspectArguments {
  std::string file;
  bool json = false;
};

// Only dtrain-worker has libtorch, which knows the operators. This program prints the worker's text and checks that all
// of it could be written.
ExitCode inspect(const ModelInspectArguments& arguments) {
  const UniqueFd said(::memfd_create("dtrain model inspect", MFD_CLOEXEC));
  if (!said) throw SystemError("cannot make a file in memory", errno);
  ProcessOptions options;
  options.fds = {{STDOUT_FILENO, said.get()}};
  const run::TrainingProgram worker = run::training_program("dtrain-worker");
  options.command = {worker.file.string(), "--inspect", arguments.file};
  if (!worker.library_path.empty()) options.environment["LD_LIBRARY_PATH"] = worker.library_path;
  if (arguments.json) options.command.emplace_back("--json");
  options.new_process_group = false;  // Ctrl-C ends both
  const ExitStatus status = Process::start(options).wait();
  if (status.signal != 0) throw Error("dtrain-worker --inspect was " + status.describe());
  const std::string text = read_file("/proc/self/fd/" + std::to_string(said.get()));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return status.exit_code();
}

}  // namespace

void add_model(CLI::App& app, ExitCode* exit_code) {
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
