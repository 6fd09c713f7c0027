#include "dtrain/run/cuda_probe.h"

#include <memory>

#include "commands.h"

namespace dtrain::cli {

void add_cuda_probe(CLI::App& app, int* exit_code) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("cuda-probe", "Open the libraries that training on GPUs needs");
  command->group("");  // for dtrain itself
  command->add_option("FOLDER", *folder, "The folder of libtorch's libraries");
  command->callback([folder, exit_code] { *exit_code = run::cuda_probe(*folder); });
}

}  // namespace dtrain::cli
