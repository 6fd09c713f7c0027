// How a rank comes up: who am I, who are the others, where is the run's folder.
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/identity.h"
#include "dtrain/profile/agent_process.h"
#include "dtrain/run/log_tail.h"
#include "dtrain/run/version.h"
#include "dtrain/scheduler/rank_mark.h"
#include "folder/plan_file.h"
#include "folder/process_id.h"
#include "link/secret_file.h"
#include "model_file.h"
#include "rank/orted.h"
#include "rank/rank_session_impl.h"
#include "unused_gpus.h"

namespace dtrain::run {
namespace {

constexpr auto kGraceAfterLauncher = std::chrono::seconds(5);
constexpr auto kGraceAfterFailure = std::chrono::seconds(10);
// Less than this process would take to leave by MPI_Abort: it must still be there to end its daemon.
constexpr auto kGraceAfterSilence = std::chrono::milliseconds(800);
// mpirun kills the other ranks a second after one has died, in the middle of a step or of a call of MPI that hangs.
constexpr auto kReportUnderMpirun = std::chrono::milliseconds(400);

}  // namespace

std::unique_ptr<RankSession> RankSession::start(const RankOptions& options) {
  auto impl = std::make_unique<Impl>();
  Impl& self = *impl;
  self.options = options;
  self.log = make_stderr_logger();
  self.process_started = process_start(self.clock);
  try {
    raise_open_files();  // rank 0 has two connections of every other rank; the agent inherits it
    self.environment = read_rank_environment(process_variables());
    unset_process_variable(scheduler::kRankMark);  // what this program leaves running does not keep the slots
    unset_process_variable("DTRAIN_SECRET");       // nor could it pass for a rank
    const host::HostIdentity host = host::host_identity();
    self.host_name = host.name;
    self.host_key = host.key;
    if (self.environment.world.host.empty()) self.environment.world.host = host.key;
    self.connect_launcher();
    self.read_experiment();
    self.connect_ranks();
    self.remove_secret_file();
    self.compare_ranks();
    self.open_run_folder();
    self.redirect_output();
    self.start_recording();
    self.make_communicator();
    self.control->on_failure([&self](const comm::RankFailure& failure) { self.on_rank_failure(failure); });
    // From here on a signal asks for a stop after the step; before, it simply ended this process.
    self.signals = std::make_unique<StopSignals>();
    self.trace_signal = std::make_unique<TraceSignal>();
    self.control->barrier("run.started");
  } catch (const std::exception& error) {
    self.report_failure(error);
    throw;
  }
  if (self.link) self.link->send(state_message("started"));
  self.events->write("rank_running");
  return std::unique_ptr<RankSession>(new RankSession(std::move(impl)));
}

void RankSession::Impl::connect_launcher() {
  if (!launched()) return;
  if (is_child()) {
    link = std::make_unique<SocketLink>(UniqueFd(environment.handover->link_fd));
    // Before the link's thread starts: it writes an event when the launcher is gone.
    folder.path = environment.handover->run_dir;
    events = std::make_unique<EventLog>(folder.events(), clock, environment.world.rank, host_name);
  } else {
    LauncherContact& launcher = *environment.launcher;
    if (!launcher.secret_file.empty()) launcher.secrets = read_secret_file(launcher.secret_file);
    auto plane = std::make_unique<PlaneLink>(launcher, environment.world, host_name, log);
    plane_link = plane.get();
    link = std::move(plane);
  }
  link->watch([this] { on_launcher_gone(); }, [this](int signal) { on_launcher_stop(signal); });
}

// Every rank has read it by now.
void RankSession::Impl::remove_secret_file() const {
  if (!environment.launcher || environment.launcher->secret_file.empty() || environment.world.local_rank != 0) return;
  std::error_code gone;
  std::filesystem::remove(environment.launcher->secret_file, gone);
}

std::string RankSession::Impl::launcher_name() const {
  if (is_child()) return "the launcher (pid " + std::to_string(environment.handover->launcher_pid) + ")";
  return "the launcher (" + environment.launcher->address + ":" + std::to_string(environment.launcher->port) + ")";
}

void RankSession::Impl::read_experiment() {
  try {
    experiment = config::read_experiment(options.experiment_file, options.overrides);
    check_kind(experiment, options.for_model);
    check_model_file(experiment);
    check_mock(options.mock, environment.world.size);
    split = scheduler::split_batch(experiment.global_batch_size, environment.world.size);
    if (!launched()) set_process_variables(experiment.environment_variables);  // else that is done
  } catch (const ConfigError&) {
    if (is_rank_0() || launched()) throw;
    throw ConfigError(options.experiment_file.string() + " cannot be run; rank 0 says why");
  }
}

void RankSession::Impl::open_run_folder() {
  if (!launched() && is_rank_0()) {
    try {
      folder = create_run_folder(options.run_dir, experiment.name, experiment.text);
      write_plan();
    } catch (const ConfigError&) {
      control->set("run.folder", "");
      throw;
    }
    control->set("run.folder", folder.path.string());
  } else if (!launched()) {
    folder.path = control->get("run.folder");
    if (folder.path.empty()) throw ConfigError("rank 0 was given bad input, and says what");
  }
  if (!launched()) check_folder_is_shared();
  if (plane_link) open_launched_folder();
  if (!events) events = std::make_unique<EventLog>(folder.events(), clock, environment.world.rank, host_name);
  if (is_rank_0()) metrics = std::make_unique<LineAppender>(folder.metrics());
  if (is_rank_0() && launched()) {
    Json versions = options.versions.is_object() ? options.versions : Json::object();
    versions["dtrain"] = version();
    update_plan_file(folder.plan(), "versions", versions);
  }
  if (!is_child()) events->write("rank_started", {{"start_ticks", start_ticks(::getpid())}});
}

void RankSession::Impl::write_plan() {
  const comm::World& world = environment.world;
  PlanFacts facts{.experiment = experiment, .overrides = options.overrides, .started_by = environment.started_by};
  facts.command = {options.program, options.experiment_file.string()};
  facts.split = split;
  if (world.size != experiment.resources.slots_per_trial) {
    facts.warnings.push_back("the world size is " + std::to_string(world.size) + ", as " + environment.started_by +
                             " says; resources.slots_per_trial (" +
                             std::to_string(experiment.resources.slots_per_trial) + ") is not used");
  }
  if (!experiment.environment_variables.empty()) {
    facts.warnings.push_back(
        "environment.environment_variables were set after this program's libraries were loaded: what those read then "
        "(OMP_NUM_THREADS, LD_PRELOAD, ...) must be set by whoever starts the ranks, or use dtrain launch");
  }
  if (experiment.max_restarts > 0) {
    facts.warnings.push_back("max_restarts has no effect here: it is dtrain launch that starts ranks again");
  }
  if (!split.warning.empty()) facts.warnings.push_back(split.warning);
  const std::string unused_gpus = find_unused_gpus(experiment);
  if (!unused_gpus.empty()) facts.warnings.push_back(unused_gpus_warning(unused_gpus));
  if (options.mock.any()) {
    facts.warnings.push_back(mock_text(options.mock));
    facts.more["mock"] = to_json(options.mock);
  }
  for (const std::string& warning : facts.warnings) log->warn("{}", warning);
  for (int rank = 0; rank < world.size; ++rank) {
    facts.placement.push_back({rank, hosts[static_cast<std::size_t>(rank)].name, {}});
  }
  facts.versions = options.versions.is_object() ? options.versions : Json::object();
  facts.versions["dtrain"] = version();
  write_file_atomic(folder.plan(), plan_json(facts).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void RankSession::Impl::redirect_output() {
  if (is_child()) return;  // the launcher made the log file this process's output
  const comm::World& world = environment.world;
  // mpirun hands out terminals that nobody looks at: only a process started by itself may redraw its progress.
  const bool terminal = world.size == 1 && environment.started_by == "nothing" && !launched();
  redirect = std::make_unique<LogRedirect>(folder.log(world.rank), world.rank,
                                           world.size > 1 ? rank_prefix(world.rank) : "", terminal, clock);
}

void RankSession::Impl::start_recording() {
  const comm::World& world = environment.world;
  Json header = {{"run", folder.path.filename().string()}};
  header["versions"] = options.versions.is_object() ? options.versions : Json::object();
  header["versions"]["dtrain"] = version();
  std::string socket;
  if (is_child()) {
    socket = environment.handover->agent_socket;
  } else if (world.local_rank == 0) {
    profile::AgentOptions agent_options{.agent_id = agent_id(), .profile_folder = folder.profile(), .header = header};
    for (int rank = 0; rank < world.size; ++rank) {
      if (hosts[static_cast<std::size_t>(rank)].key == host_key) agent_options.local_ranks.push_back(rank);
    }
    if (const auto& wanted = experiment.profiling.prometheus)
      agent_options.prometheus = {wanted->address, wanted->port};
    profile::AgentProcess agent = profile::start_agent(agent_options);
    socket = agent.socket;
    events->write("agent_started", {{"agent", agent_options.agent_id}, {"pid", agent.process.pid()}});
    report_host(agent.process.pid());
    agent.process.detach();  // it ends by itself, after the last rank
    control->set("run.agent/" + host_key, socket);
  } else {
    socket = control->get("run.agent/" + host_key);
  }
  const auto compared = control->measure_clock(kClockTimeout);
  if (compared) {
    header["rank_0_clock"] = {{"time_ns", compared->time.count()},
                              {"offset_ns", compared->offset.count()},
                              {"error_ns", compared->error.count()}};
  }
  recorder = std::make_unique<profile::Recorder>(
      profile::Recorder::Options{
          .rank = world.rank, .world_size = world.size, .agent_socket = socket, .header = header},
      clock, process_started);
  record_clock(compared);
}

void RankSession::Impl::on_launcher_gone() {
  if (launcher_gone.exchange(true)) return;
  const std::string cause = launcher_name() + " is gone; this rank stops";
  log->error("{}", cause);
  try_event("launcher_gone", {{"cause", cause}});
  exit_timer.arm(kGraceAfterLauncher, static_cast<int>(ExitCode::kRunFailed), [this, cause] {
    log->error("the step did not end within {} s after the launcher was gone: ending at once",
               std::chrono::seconds(kGraceAfterLauncher).count());
  });
}

void RankSession::Impl::on_launcher_stop(int signal) {
  asked_to_stop = signal;
}

void RankSession::Impl::on_rank_failure(const comm::RankFailure& failure) {
  // Where a host does not answer any more Open MPI's daemon here may be cut off as well: nobody would ever end it.
  const bool cut_off = mpi && failure.departure == comm::Departure::kSilent;
  if (cut_off) {
    log->error("{}: this rank ends, and Open MPI's daemon with it", failure.cause);
    return cut_off_timer.arm(kGraceAfterSilence, static_cast<int>(ExitCode::kRunFailed), end_daemon_above);
  }
  if (mpi && is_rank_0() && !launched()) {
    report_timer.arm(kReportUnderMpirun, std::nullopt, [this, failure] { report_failure(CommError(failure.cause)); });
  }
  exit_timer.arm(kGraceAfterFailure, static_cast<int>(ExitCode::kRunFailed), [this] {
    log->error("this rank did not come out of its step within {} s after the failure: ending at once",
               std::chrono::seconds(kGraceAfterFailure).count());
  });
}

}  // namespace dtrain::run
