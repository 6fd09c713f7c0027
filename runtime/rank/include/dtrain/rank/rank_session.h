// A rank without its model, from its start to its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/host_share.h"
#include "dtrain/comm/nccl.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/rank/logical_ranks.h"
#include "dtrain/rank/mock.h"

namespace dtrain::rank {

// An error that all ranks throw with the same text, because they derive it from the same exchanged facts.
// RankSession::start() and fail() report it as an error of the run, not of one rank. Plain value; any thread.

class AgreedError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace dtrain::rank

// All that a rank has besides its model: its identity, its peers, its run folder, its recorder. It does not need torch.
// run_trial() makes one, and so do the rank programs of tests. It is the same however the rank was started (dtrain
// launch, mpirun, srun, torchrun, or by itself).

namespace dtrain::profile {
struct Picture;
}
namespace dtrain::config {
struct Experiment;
}

namespace dtrain::rank {

// The parts of a RankSession (runtime/rank).
class ExitDeadlines;
class FailureReport;
class LauncherConnection;
class Membership;
class ProgressReport;
class RankHosts;
class Recording;
class StopRequests;
struct Assignment;
struct RankFiles;
struct RankGpus;
struct RankIdentity;
struct RankSignals;
struct RunMemory;

// The end of a run that was asked to stop.
struct StopOutcome {
  ExitCode code = ExitCode::kDone;
  std::string reason;  // "SIGTERM"; empty: it was not asked
};

// The command line of a rank program: `program experiment.yaml [--run-dir DIR [--or-continue]] [--set a.b=c]… [--mock
// WHAT | --evaluate]`, or `program --continue RUN [--set a.b=c]…`.
struct RankOptions {
  std::filesystem::path experiment_file;
  std::filesystem::path contents;      // --contents: read instead of experiment_file; empty: that file itself
  std::filesystem::path run_dir;       // empty: runs/NNNN-name
  bool continues = false;              // --continue: continues the run in run_dir
  bool continues_if_there = false;     // --or-continue: the same if run_dir holds a run, which rank 0 looks at
  std::vector<std::string> overrides;  // --set; with --continue after those of the run's start
  Mock mock;                           // --mock
  bool evaluates = false;              // --evaluate, --predict: one pass over the validation data, and no training
  std::filesystem::path predictions;   // --predict: the file of the model's outputs; empty: metrics are computed
  std::filesystem::path orders;        // --orders: with `evaluates`, names checkpoints to be validated; empty: none
  std::int64_t prediction_batch = 0;   // --batch-size, of --predict; 0: the experiment's global batch over its slots
  std::string program;                 // argv[0]
  bool for_model = false;              // runs `model:` experiments and no others (dtrain-worker)
  Json versions;                       // {"libtorch": "2.11.0", …}: goes into plan.json and the dumps
};
// Prints usage (--help) or the error and exits the process (0 or 2).
RankOptions parse_rank_arguments(int argc, char** argv);

// Rank 0's progress. The launcher, or rank 0 itself without a launcher, shows it a few times a second.
struct Progress {
  std::int64_t batch = 0, total_batches = 0;  // batches of this rank, from the start of the run
  std::int64_t epoch = 0;                     // from 0
  std::int64_t epoch_batch = 0, batches_per_epoch = 0;
  std::optional<double> loss;         // empty: none yet
  double samples_per_second = 0;      // all ranks
  double seconds_left = -1;           // estimated by report_progress(); negative: not known
  std::string activity = "training";  // or "validation", "checkpoint"
};

class RankSession {
 public:
  // Collective over all ranks. Throws ConfigError (bad input, exit code 2), CommError or SystemError, which it has
  // already reported: the caller only returns exit_code_of(error). A signal during the start ends the process as usual.
  static std::unique_ptr<RankSession> start(const RankOptions& options);
  ~RankSession();

  const config::Experiment& experiment() const;
  const Mock& mock() const;
  bool evaluates() const;                            // RankOptions::evaluates
  const std::filesystem::path& predictions() const;  // RankOptions::predictions
  const std::filesystem::path& orders() const;       // RankOptions::orders
  const comm::World& world() const;
  // Returns the GPU that this rank trains on, as CUDA numbers the GPUs of this process; empty: it trains on the CPU.
  std::optional<int> gpu() const;
  // Returns its name, "NVIDIA H100 80GB HBM3"; empty: the rank trains on the CPU, or the name is not known.
  std::string gpu_name() const;
  comm::ControlPlane& control();
  comm::Communicator& communicator();
  // Makes the communicator for data on the ranks' GPUs (NCCL). Collective; at most once, after the process has opened
  // CUDA.
  void make_device_communicator(const comm::NcclOptions& options);
  // Returns the communicator for data on the rank's device; on CPUs it is communicator().
  comm::Communicator& device_communicator();
  profile::Recorder& recorder();
  const Clock& clock() const;
  const Logger& log() const;
  const std::filesystem::path& run_dir() const;
  // The logical ranks whose batches this rank computes. Without virtual ranks it is one, with the rank's own number.
  const LogicalRanks& logical() const;
  // Makes this logical rank the one for which the trial computes from here on. Training thread.
  void act_as(int logical_rank);
  std::int64_t batch_per_rank() const;  // in samples; with virtual ranks of a logical rank
  // For a script without an experiment file, whose loader has the batches: replaces hyperparameters.global_batch_size.
  // ConfigError as split_batch(). The same on every rank, before training is set up.
  void use_global_batch_size(std::int64_t samples);
  // Returns the address of this host for connections from the other ranks: 127.0.0.1 if all are on one host.
  std::string address() const;
  // Returns the folder for results for later runs, such as tuned fusion plans. Empty: none. It may not exist yet.
  std::filesystem::path cache_folder() const;

  // Returns the folder of the checkpoint that training goes on from; empty: it begins anew. The same on all ranks.
  std::filesystem::path resume_from() const;
  // Returns the folder of this run's checkpoints (checkpoint/checkpoint.h). It may not exist yet.
  std::filesystem::path checkpoint_folder() const;

  // Returns where states in memory are that outlive the ranks.
  const RunMemory& memory() const;
  // Tells the launcher that this rank, after the death of another one, writes the state of its last batch: it must not
  // be ended before.
  void tell_of_saving();

  // See comm/host_share.h.
  SharedMemory share_on_host(const std::string& name, const std::function<SharedMemory()>& make,
                             comm::HostAccess access = comm::HostAccess::kRead);
  // The same with memory that nothing writes any more. Where a launcher of this host starts the ranks again, it keeps
  // the memory meanwhile, and `make` is not called for the same name again.
  SharedMemory keep_on_host(const std::string& name, const std::function<SharedMemory()>& make);

  // True after SIGTERM, SIGINT or the launcher's end: the caller finishes the current step, then stops. It becomes true
  // at different times on different ranks, so ranks must agree on when to stop (training does so in every round).
  bool stop_requested() const;
  std::string stop_reason() const;

  // The number of batches that SIGUSR2 requests to trace (0: it gives no number). Returns each request once; else
  // empty.
  std::optional<int> take_trace_request();

  void report_progress(const Progress& progress);  // rank 0; rate-limited here
  // Rank 0: appends the line, with "time", to metrics.jsonl, and its values to TensorBoard's events. Warns once if a
  // line cannot be written, and counts such lines.
  void write_metrics(const Json& line);
  // Rank 0: begins TensorBoard's events. To be called when training begins, or goes on after so many batches.
  void begin_events(std::int64_t batches);
  // Rank 0: adds a picture, or a histogram of values, to TensorBoard's events of this batch. A thread writes it later.
  void write_picture(const std::string& name, std::int64_t batch, profile::Picture picture);
  void write_histogram(const std::string& name, std::int64_t batch, std::vector<float> values);
  // Rank 0: the length of metrics.jsonl, in bytes.
  std::int64_t metrics_bytes() const;
  // Rank 0: cuts metrics.jsonl to the length that it had at the checkpoint from which training goes on. Warns, and
  // changes nothing, if the file is shorter. TensorBoard's events begin after so many batches.
  void cut_metrics(std::int64_t bytes, std::int64_t batches);
  void write_event(const std::string& event,
                   const Json& fields = {});                    // appends to events.jsonl, adds time, rank, pid, host
  void update_plan(const std::string& key, const Json& value);  // rank 0: a top-level key of plan.json (atomic)
  // Sets the batch that errors name. Cheap. Warns once if records are lost (full disk), and starts a monitor
  // again that has ended.
  void set_step(std::int64_t batch);

  // To be called after the last step, before saving: from then on this process has a minute to save, even if its
  // launcher is gone.
  void begin_last_save();
  // To be called when the training loop has returned. `stopped`: because of stop_requested(). `saved`: a checkpoint of
  // the last batch is durable. Writes out the records, leaves the run, and prints the summary on rank 0 if there is no
  // launcher. Returns the process's exit code, the same on all ranks: 75 if SIGTERM has stopped the run and `saved` is
  // true on every rank, 130 after SIGINT. mpirun and srun under `dtrain launch` get 0 for both.
  int finish(bool stopped, bool saved);
  // To be called if an exception has ended the training: publishes the cause, unless another rank's failure led to it.
  // Returns exit code 1.
  int fail(const std::exception& error);
  // True after fail() if another rank's failure has led to it and `dtrain launch` started this rank: it starts all
  // ranks again, or ends the run, so that this process may end without freeing anything.
  bool is_replaced() const;

 private:
  explicit RankSession(const RankOptions& options);

  // The steps of start(), in order (rank_start.cpp).
  void connect_launcher();
  void connect_ranks();
  void compare_ranks();
  void open_folder();
  void redirect_output();
  void start_recording();
  void make_communicator();

  void on_launcher_end();
  void on_rank_failure(const comm::RankFailure& failure);
  StopOutcome agree_on_stop(bool saved);
  void show_end(const StopOutcome& stop);

  // Destroyed in reverse order; comments in the destructor explain why.
  const SystemClock clock_{};
  const Logger log_;
  const std::unique_ptr<RankIdentity> identity_;
  std::unique_ptr<Assignment> assignment_;
  const std::unique_ptr<ExitDeadlines> deadlines_;
  const std::unique_ptr<StopRequests> stops_;
  const std::unique_ptr<RankFiles> files_;
  const std::unique_ptr<FailureReport> failure_report_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<RankHosts> hosts_;
  std::unique_ptr<RankGpus> gpus_;
  std::unique_ptr<LauncherConnection> launcher_;  // null if `dtrain launch` did not start this rank
  std::unique_ptr<Recording> recording_;
  std::unique_ptr<ProgressReport> progress_;  // null except on rank 0
  std::unique_ptr<RankSignals> signals_;
};

// Returns 2 for a ConfigError, else 1.
int exit_code_of(const std::exception& error);

}  // namespace dtrain::rank
