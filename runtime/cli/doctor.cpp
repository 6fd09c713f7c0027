#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/launcher/doctor.h"
#include "dtrain/launcher/internal_commands.h"

namespace dtrain::cli {
namespace {

// Returns "dtrain 0.1.0, commit …", and a line for each library that dtrain uses.
std::string version_text() {
  std::string text;
  for (const auto& [name, value] : launcher::versions()) text += (text.empty() ? "" : "\n") + name + " " + value;
  return text;
}

}  // namespace

void add_doctor(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<launcher::DoctorRequest>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check whether this machine and the cluster have what training needs");
  command
      ->add_option("--cluster", request->cluster,
                   "A cluster file (YAML) or a hostfile of MPI (default: as for dtrain launch)")
      ->type_name("FILE");
  command->add_option("--runs", request->runs, "The folder that runs are written to (default: runs)")->type_name("DIR");
  command->add_flag("--bench", request->bench,
                    "Measure what memory and processor give to each rank of this machine (2 s)");
  command->add_flag("--json", request->json, "As one JSON object");
  command->footer(
      "Each line is ok, a warning or a problem; warnings and problems have a remedy. Checked on every host:\n"
      "libtorch, MPI, shared memory, limits, interfaces, the disk of the runs; on this one also the environment\n"
      "variables. Where there are GPUs: the driver, whether ranks can open libtorch_cuda and NCCL, modes, clocks,\n"
      "memory errors, NVLink and access between GPUs.\n"
      "For the other hosts of the cluster also, over ssh: whether they answer, their clocks, and the speed of the\n"
      "networks between them. docs/doctor.md describes each check.\n"
      "The limits of this machine come last, as far as they were measured: by --bench, or by an earlier launch.\n"
      "\n"
      "Exit codes: 0, or 1 if there is a problem.");
  command->callback([request, exit_code] { *exit_code = launcher::doctor(*request); });
}

void add_version(CLI::App& app, ExitCode*) {
  app.set_version_flag("--version", version_text, "Print the version, as `dtrain version` does");
  CLI::App* command =
      app.add_subcommand("version", "Print the version of dtrain, and which libtorch, MPI and NCCL it finds");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([json] {
    if (*json) {
      Json object = Json::object();
      for (const auto& [name, value] : launcher::versions()) object[name] = value;
      std::printf("%s\n", to_line(object).c_str());
    } else {
      std::printf("%s\n", version_text().c_str());
    }
  });
}

// Commands for dtrain itself, which --help does not list: it starts them on other hosts, or in a process of their own.

void add_start_rank(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("start-rank", "What mpirun and srun start for `dtrain launch`");
  command->group("");
  command->prefix_command();
  command->callback([command] {
    if (command->remaining().empty()) throw ConfigError("dtrain start-rank: no program given");
    launcher::start_rank(command->remaining());
  });
}

void add_host_probe(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("host-probe", "Report what this host has to the dtrain of another host");
  command->group("");
  command->callback([exit_code] { *exit_code = launcher::host_probe(); });
}

void add_cuda_probe(CLI::App& app, ExitCode*) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("cuda-probe", "Open the libraries that training on GPUs needs");
  command->group("");
  command->add_option("FOLDER", *folder, "The folder of libtorch's libraries");
  command->callback([folder] { launcher::cuda_probe(*folder); });
}

}  // namespace dtrain::cli
