#include "dtrain/launcher/doctor.h"

#include <memory>

#include "commands.h"

namespace dtrain::cli {

void add_doctor(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<run::DoctorRequest>();
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
  command->callback([request, exit_code] { *exit_code = run::doctor(*request); });
}

}  // namespace dtrain::cli
