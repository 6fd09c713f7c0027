#include "dtrain/run/doctor.h"

#include <memory>

#include "commands.h"

namespace dtrain::cli {

void add_doctor(CLI::App& app, int* exit_code) {
  auto request = std::make_shared<run::DoctorRequest>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check whether this machine and the cluster have what training needs");
  command
      ->add_option("--cluster", request->cluster,
                   "A cluster file (YAML) or a hostfile of MPI instead of the one that is found")
      ->type_name("FILE");
  command->add_option("--runs", request->runs, "The folder that runs are written to (default: runs)")->type_name("DIR");
  command->add_flag("--json", request->json, "As one JSON object");
  command->footer(
      "Every line is ok, a warning or a problem, with what to do about it. On every host: libtorch, CUDA's driver and "
      "the "
      "GPUs,\n"
      "NCCL, MPI, shared memory, limits, interfaces, the disk that runs are written to. Of the other hosts of the "
      "cluster,\n"
      "over ssh, also: whether they answer, their clocks, and how fast the networks between them are.\n"
      "\n"
      "Exit codes: 0, or 1 where something is a problem.");
  command->callback([request, exit_code] { *exit_code = run::doctor(*request); });
}

}  // namespace dtrain::cli
