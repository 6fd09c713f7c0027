// The interface between dtrain's programs and those who start them: the meanings of the exit codes, and the environment
// variables. This is the only list of both. The manual page, --help, `dtrain doctor` and the tables of docs/errors.md
// and docs/launching.md are made from it; tests/base/process_interface_test.cpp compares it with the documents and the
// sources.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain {

// Words between backticks are code, in all texts of this file.
struct ExitCodeMeaning {
  ExitCode code;
  const char* meaning;
  const char* details;  // more sentences; may be empty
};

inline constexpr ExitCodeMeaning kExitCodes[] = {
    {ExitCode::kDone, "Done.", ""},
    {ExitCode::kRunFailed, "The run failed.",
     "A rank died or threw, data is missing, the weights cannot be written, or the launcher was killed (then the ranks "
     "exit with 1). Also: another command failed, or `dtrain doctor` found a problem."},
    {ExitCode::kBadInput, "Bad input, found before any rank trains.",
     "An error in the experiment, a wrong option, a request that never fits, no libtorch."},
    {ExitCode::kRegression, "`dtrain diff --fail-above` found a regression.", ""},
    {ExitCode::kPreempted, "Stopped by SIGTERM, and the checkpoint of the last batch is durable.",
     "`dtrain launch --continue` goes on from there. The number is that of `EX_TEMPFAIL`."},
    {ExitCode::kInterrupted, "Interrupted by Ctrl-C or `dtrain task kill`.",
     "The ranks finished their step and saved a checkpoint, unless they had not begun, the run saves none (a mock "
     "run), or a second Ctrl-C killed them. SIGTERM gives this code, too, where there is no such checkpoint."},
};

// A variable that a user may set, or several that are set together.
struct Variable {
  const char* names;  // separated by spaces
  const char* value;
  const char* effect;
  const char* readers;       // the programs that read it
  bool is_ordinary = false;  // every session has it, so that `dtrain doctor` does not show it
};

inline constexpr Variable kVariables[] = {
    {"DTRAIN_LIBTORCH_DIR", "a folder",
     "The `torch` folder of an installed PyTorch of dtrain's version. Programs that train then use its libtorch and no "
     "other. If it is not set, they use the one they were linked to, else the one that `dtrain-get-libtorch` "
     "installed.",
     "`dtrain`; CMake's `find_package(dtrain)`"},
    {"DTRAIN_PYTHON VIRTUAL_ENV", "a Python; the folder of a virtual environment",
     "The Python that runs scripts and trials in Python. The first counts before the second; without both it is "
     "`python3` in `PATH`.",
     "`dtrain launch`, `dtrain run`, `dtrain follow`"},
    {"DTRAIN_CLUSTER", "a file",
     "The cluster: a cluster file or a hostfile of MPI. `--cluster` counts before it, and `./cluster.yaml` after it.",
     "every command that has `--cluster`"},
    {"DTRAIN_STATE_DIR", "an absolute path",
     "The folder of the ledger of tasks (`ledger.db`), instead of `dtrain/` in `XDG_STATE_HOME`. It must be on a local "
     "disk.",
     "`dtrain`"},
    {"DTRAIN_CALIBRATION", "true or false",
     "With false, launches use what was measured of this machine before, and measure nothing.",
     "`dtrain launch`, `dtrain run`"},
    {"DTRAIN_NETWORK_INTERFACE", "an interface, or a network such as 10.1.0.0/16",
     "The network of ranks on several hosts that are started without `dtrain launch`.", "ranks"},
    {"DTRAIN_RUN_SECRET_FILE", "a file, the same on every host",
     "The run's secret, for ranks that MPI or a store at `MASTER_ADDR` connects "
     "([security.md](security.md#the-secret)).",
     "ranks"},
    {"DTRAIN_RECORD", "true or false",
     "With false, a script that torchrun has started and that calls `init_process_group(\"dtrain\")` is not recorded "
     "([torch-distributed.md](torch-distributed.md#unchanged-scripts)).",
     "ranks"},
    {"DTRAIN_SYNC_DEBUG", "error or off",
     "With error, an operation that makes the host wait for the GPU is an error from batch 40 on.", "ranks on GPUs"},
    {"TORCH_FR_DUMP_TEMP_FILE", "the beginning of files' names",
     "Where process groups of torch.distributed write their last operations after a failure; the rank is the end of "
     "the "
     "name. If it is not set: `flight_record/rank_` in the run's folder.",
     "ranks"},
    {"DTRAIN_RANK DTRAIN_WORLD_SIZE DTRAIN_LOCAL_RANK DTRAIN_LOCAL_SIZE DTRAIN_JOB", "numbers; any text",
     "Identify a rank that is started without `dtrain launch`, and the run that it belongs to. The variables of mpirun "
     "(`OMPI_COMM_WORLD_*`) and srun (`SLURM_*`) are read too. If only a part of a group is set, that is an error that "
     "names the missing variable.",
     "ranks"},
    {"RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE", "numbers", "The same, as torchrun and others set them.", "ranks"},
    {"MASTER_ADDR MASTER_PORT", "a name or an address; a port",
     "Where ranks on several hosts find rank 0 if MPI does not connect them.", "ranks"},
    {"PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PET_MASTER_ADDR PET_MASTER_PORT", "as torchrun reads them",
     "The number of hosts, the number of this host, its ranks, and where rank 0 is, for hosts that each start their "
     "own ranks. Kubernetes sets them. `PET_NNODES=2:4` lets the number of hosts change "
     "([launching.md](launching.md#a-number-of-hosts-that-changes)).",
     "`dtrain launch`, `dtrain run`, ranks"},
    {"PET_RDZV_CONF", "as torchrun reads it",
     "Of it `last_call_timeout` alone counts: the seconds that the least number of hosts waits for more; 30 if it is "
     "not set.",
     "`dtrain launch`, `dtrain run`"},
    {"KUBEFLOW_TRAINER_SERVER_URL KUBEFLOW_TRAINER_SERVER_TOKEN KUBEFLOW_TRAINER_SERVER_CA_CERT",
     "an https address; two files",
     "The server that gets the progress of the run, the token for it, and the certificates that it must have one of "
     "([kubernetes.md](kubernetes.md#progress)). Kubeflow Trainer sets them.",
     "`dtrain launch`, `dtrain run`, ranks"},
    {"OMP_NUM_THREADS OMP_WAIT_POLICY GOMP_SPINCOUNT", "as OpenMP reads them",
     "Passed to the ranks unchanged. If they are not set, `dtrain launch` sets them to the number of cores of a rank's "
     "slot, to passive, and to 10000: threads spin for some 0.1 ms before they sleep.",
     "`dtrain launch`, `dtrain run`, ranks"},
    {"CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER", "as CUDA reads them",
     "Which GPUs of this machine are slots, and in which order.", "`dtrain`, ranks"},
    {"OMPI_MCA_plm_rsh_agent", "a command", "Starts commands on other hosts, instead of `ssh`.",
     "`dtrain` with `launcher: mpi`"},
    {"XDG_STATE_HOME XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME", "absolute paths",
     "Their folders `dtrain/` hold the ledger of tasks, what launches have measured, the cluster file `cluster.yaml`, "
     "and libtorch. If they are not set: `~/.local/state`, `~/.cache`, `~/.config` and `~/.local/share`.",
     "`dtrain`, ranks", true},
    {"XDG_RUNTIME_DIR", "a folder of mode 0700",
     "Holds the private files by which the ranks of a host find each other; `/tmp/dtrain-UID` if it is not set, or "
     "`/tmp/dtrain-UID-XXXXXX` where another user has taken that name.",
     "`dtrain launch`, `dtrain run`, ranks", true},
    {"PATH", "folders", "Where an entrypoint without a slash is looked up, after the folder of dtrain itself.",
     "`dtrain`", true},
    {"NO_COLOR", "anything", "Text on a terminal has no colours.", "`dtrain`", true},
};

// Variables by which dtrain's own processes pass values to each other. Nobody else sets them.
inline constexpr const char* kInternalVariables[] = {
    "DTRAIN_AGENT_ID",      "DTRAIN_AGENT_SOCKET", "DTRAIN_COMMAND",    "DTRAIN_GPUS",        "DTRAIN_KEEPER_FD",
    "DTRAIN_KEPT_MEMORY",   "DTRAIN_LAUNCHED_BY",  "DTRAIN_LAUNCHER",   "DTRAIN_LAUNCHER_FD", "DTRAIN_LAUNCHER_PID",
    "DTRAIN_MEMORY_FOLDER", "DTRAIN_NURSERY",      "DTRAIN_RENDEZVOUS", "DTRAIN_RESUME_FROM", "DTRAIN_RUN_DIR",
    "DTRAIN_SECRET",        "DTRAIN_SECRET_FILE",  "DTRAIN_SLOTS",      "DTRAIN_SLOT_TYPE",   "DTRAIN_SUBMITTED",
};

}  // namespace dtrain
