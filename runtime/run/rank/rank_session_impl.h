// The parts of a RankSession. Members are destroyed in reverse order: what watches and reports goes last.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/comm/mpi.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/run/run_folder.h"
#include "dtrain/scheduler/batch_split.h"
#include "environment.h"
#include "folder/event_log.h"
#include "folder/log_redirect.h"
#include "link/launcher_link.h"
#include "link/plane_link.h"
#include "link/rendezvous.h"
#include "rank/exit_timer.h"
#include "rank/stop_signals.h"
#include "rank/trace_signal.h"

namespace dtrain::run {

// For comparing clocks with rank 0: a few round trips, which take long only where something else is wrong.
inline constexpr std::chrono::seconds kClockTimeout{2};

// Estimates the time left from how fast batches have come since the first report.
class RemainingTime {
 public:
  double seconds_left(const Progress& progress, Nanoseconds now);

 private:
  std::optional<Nanoseconds> first_time_;
  std::int64_t first_batch_ = 0;
};

struct HostOfRank {
  std::string key;   // what tells hosts apart (dtrain/host/identity.h)
  std::string name;  // for people
};

struct RankSession::Impl {
  RankOptions options;
  RankEnvironment environment;
  config::Experiment experiment;
  scheduler::BatchSplit split;
  SystemClock clock;
  Nanoseconds process_started{0};
  std::string host_name;
  std::string host_key;
  std::vector<HostOfRank> hosts;  // of each rank, once they have met
  std::vector<int> ranks_of_this_host() const;
  std::string backend;
  bool has_launchers_folder = true;
  Logger log;
  RunFolder folder;

  std::atomic<bool> launcher_gone{false};
  std::atomic<int> asked_to_stop{0};  // the signal for whose sake the launcher asks
  std::atomic<std::int64_t> step{-1};

  ExitTimer exit_timer;
  // The same, where the host of another rank does not answer any more: sooner, and with the daemon.
  ExitTimer cut_off_timer;
  std::unique_ptr<LogRedirect> redirect;  // none where the launcher made the log the output already
  std::unique_ptr<EventLog> events;
  std::unique_ptr<LineAppender> metrics;  // rank 0
  std::shared_ptr<comm::MpiJob> mpi;      // where MPI carries something; ends the job where this rank fails
  std::unique_ptr<comm::ControlPlane> control;
  std::unique_ptr<LauncherLink> link;
  PlaneLink* plane_link = nullptr;  // the same, where another than the launcher started this rank for it
  std::unique_ptr<profile::Recorder> recorder;
  std::unique_ptr<comm::Communicator> communicator;
  std::unique_ptr<StopSignals> signals;
  std::unique_ptr<TraceSignal> trace_signal;

  Nanoseconds reported{0};
  std::int64_t metrics_lost = 0;  // lines
  bool warned_of_loss = false;
  RemainingTime remaining;
  std::atomic<bool> ended{false};
  ExitTimer report_timer;  // reports a failure in time where the training thread does not; the first to be destroyed

  bool is_rank_0() const { return environment.world.rank == 0; }
  // By `dtrain launch`: as its own child, or through mpirun or srun.
  bool launched() const { return is_child() || environment.launcher; }
  bool is_child() const { return environment.handover.has_value(); }
  std::string launcher_name() const;

  // The steps of start(), in order.
  void read_experiment();
  void connect_launcher();
  void connect_ranks();
  void remove_secret_file() const;
  bool uses_mpi() const;
  void connect_through_mpi(comm::ControlOptions control_options);
  void compare_ranks();
  void check_folder_is_shared();
  void open_launched_folder();
  void report_host(std::int64_t agent_pid);
  std::string agent_id() const;
  void make_communicator();
  void open_run_folder();
  void redirect_output();
  void start_recording();
  void record_clock(const std::optional<comm::ClockOffset>& compared);
  void write_plan();

  void on_launcher_gone();
  void on_launcher_stop(int signal);
  void on_rank_failure(const comm::RankFailure& failure);
  // Tells everybody why this rank ends: the other ranks, the launcher or the screen, the log. Once.
  void report_failure(const std::exception& error);
  void print_failure(const std::string& text, bool primary, bool on_screen);
  void tell_torchrun(const std::string& text);
  void try_event(const std::string& event, const Json& fields);
  // Once, on the rank that the agent has told.
  void warn_of_losses();
  // What of this rank could not be written, for the summary to count where the dump itself cannot say it.
  void tell_losses();
};

}  // namespace dtrain::run
