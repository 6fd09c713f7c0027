// The start of a rank, step by step.
#include "rank_start.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/nursery.h"
#include "dtrain/base/pulse.h"
#include "dtrain/comm/control.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/stop_requests.h"
#include "failure_report.h"
#include "membership.h"
#include "rank_output.h"
#include "run_memory.h"

namespace dtrain::rank {
namespace {

constexpr const char* kUseProof = "use communication.security: proof (docs/security.md)";

// True if these ranks will train on GPUs, as far as one rank can know. The rank sets the variables for GPUs or for
// CPUs, which must happen before it meets the others.
bool expects_gpus(const Assignment& assignment, const comm::World& world) {
  if (assignment.slot_type != config::SlotType::kAuto) return assignment.slot_type == config::SlotType::kCuda;
  const auto visible = static_cast<int>(assignment.gpus.gpus.size());
  const config::Experiment& experiment = assignment.experiment;
  const bool matters = !experiment.cpu_variables.empty() || !experiment.cuda_variables.empty();
  if (visible == 1 && world.local_size > 1 && matters) {
    throw ConfigError(
        "environment.environment_variables has lists for cpu or cuda, and with resources.slot_type: auto "
        "it is not clear before the ranks meet on which they train: 1 GPU is visible to each of " +
            std::to_string(world.local_size) + " ranks of this host",
        "set resources.slot_type to cuda or cpu");
  }
  return visible >= world.local_size;
}

// Reads the environment and the host, and removes from the environment what child processes must not inherit. Called
// before other threads exist. ConfigError as read_rank_environment().
void read_identity(RankIdentity& identity) {
  raise_open_files();  // rank 0 has two connections to every other rank; the monitor inherits the limit
  identity.environment = read_rank_environment(process_variables());
  unset_process_variable(host::kRankMark);  // processes that outlive this program must not hold the slots
  unset_process_variable("DTRAIN_SECRET");  // nor be able to join the run as a rank
  identity.host = host::host_identity();
  if (identity.environment.world.host.empty()) identity.environment.world.host = identity.host.key;
}

// In a prediction a batch goes to one rank as a whole, so that neither its size nor its samples depend on the number of
// ranks. So it needs no virtual ranks.
void take_whole_batches(const RankOptions& options, Assignment& assignment) {
  config::Experiment& experiment = assignment.experiment;
  const std::int64_t parts = experiment.parts_of_batch(std::max(1, experiment.resources.slots_per_trial));
  const std::int64_t size = options.prediction_batch > 0
                                ? options.prediction_batch
                                : std::max<std::int64_t>(1, experiment.global_batch_size / parts);
  if (std::exchange(experiment.virtual_ranks, 0) > 0) {
    // Virtual ranks do not measure which memory format is faster, so the checkpoint says nothing of it. Its compressors
    // are those of virtual ranks.
    config::Optimizations& optimizations = experiment.optimizations;
    if (optimizations.memory_format == config::MemoryFormat::kAuto) {
      optimizations.memory_format = config::MemoryFormat::kChannelsLast;
    }
    optimizations.gradient_compression = comm::NoCompression();
  }
  experiment.global_batch_size = size;
  experiment.hyperparameters["global_batch_size"] = size;
  assignment.split = {.per_slot = size, .effective = size};
}

// Sets the experiment's environment variables unless the launcher has. Called before other threads exist. ConfigError
// if the experiment cannot be run: ranks without a launcher share a screen, so only rank 0's error gives the reason.
Assignment read_assignment(const RankIdentity& identity) {
  const RankOptions& options = identity.options;
  const bool launched = identity.environment.is_launched();
  try {
    Assignment assignment{.experiment =
                              config::read_experiment(options.experiment_file, options.overrides, options.contents)};
    const config::Experiment& experiment = assignment.experiment;
    if (!launched && !identity.environment.is_kept()) {
      config::refuse_elastic(experiment, "is for `dtrain launch`, whose queue changes the number of slots",
                             "leave it out, or start the run with dtrain launch");
      config::refuse_on_host_loss(experiment, "is for the keepers of several hosts, and nothing keeps these ranks",
                                  "leave it out, or start the run with dtrain launch on each host with PET_NNODES");
    }
    share_new_files(experiment);
    check_kind(experiment, options.for_model);
    check_model_files(experiment);
    check_mock(options.mock, identity.world().size);
    assignment.split =
        config::split_batch(experiment.global_batch_size, experiment.parts_of_batch(identity.world().size));
    if (!options.predictions.empty()) take_whole_batches(options, assignment);
    if (const int ranks = experiment.virtual_ranks; ranks > 0 && identity.world().size > ranks) {
      throw ConfigError(
          experiment.file.string() + ": reproducibility.virtual_ranks is " + std::to_string(ranks) + ", and " +
              std::to_string(identity.world().size) + " ranks were started",
          "start at most " + std::to_string(ranks) + " ranks; another number of virtual ranks gives other bits");
    }
    assignment.logical = logical_ranks_of(identity.world().rank, identity.world().size, experiment.virtual_ranks);
    assignment.slot_type = experiment.resources.slot_type;
    if (launched) {
      const bool on_gpus = identity.environment.is_placed_on_gpus();
      assignment.slot_type = on_gpus ? config::SlotType::kCuda : config::SlotType::kCpu;
    } else {
      set_process_variables(experiment.environment_variables);  // else the launcher has set them
    }
    if (assignment.slot_type != config::SlotType::kCpu)
      assignment.gpus = look_at_visible_gpus(assignment.slot_type, process_variables());
    if (!launched) {
      const bool on_gpus = expects_gpus(assignment, identity.world());
      set_process_variables(on_gpus ? experiment.cuda_variables : experiment.cpu_variables);
    }
    return assignment;
  } catch (const ConfigError&) {
    if (identity.is_rank_0() || launched) throw;
    throw ConfigError(options.experiment_file.string() + " cannot be run; see the error of rank 0");
  }
}

// A run that begins anew, although earlier attempts have written metrics: they go to the files of the last one. The
// launcher leaves them in their place, as it does not know which states the hosts have in memory.
void put_metrics_aside(const RunFolder& folder) {
  const int last = attempt_number(folder) - 1;
  std::error_code code;
  if (last < 1 || !std::filesystem::exists(folder.metrics(), code)) return;
  const auto aside = folder.path / ("attempt-" + std::to_string(last)) / folder.metrics().filename();
  std::filesystem::rename(folder.metrics(), aside);
}

// The folder of a run whose launcher uses mpirun or srun. A host that does not see it gets one of its own under the
// same path, which the launcher collects at the end.
void open_launched_folder(comm::ControlPlane& control, const LaunchOrders& orders, RankFiles& files) {
  files.folder = {orders.run_dir};
  files.is_launchers_folder = is_folder_of(files.folder, orders.token);
  if (!files.is_launchers_folder && control.world().local_rank == 0) {
    make_host_folder(files.folder, orders.token, orders.plan, orders.experiment);
  }
  control.barrier("run.folder");
}

// On rank 0 of a launched run: adds the GPUs of other hosts, which the launcher could not know.
void name_gpus_in_plan(const std::filesystem::path& file, const RankGpus& gpus) {
  if (!gpus.on_gpus) return;
  Json ranks = read_json(file).at("ranks");
  bool changed = false;
  for (std::size_t rank = 0; rank < ranks.size() && rank < gpus.ranks.size(); ++rank) {
    if (!gpus.ranks[rank] || ranks[rank].contains("gpu")) continue;
    ranks[rank]["gpu"] = to_json(*gpus.ranks[rank]);
    changed = true;
  }
  if (changed) update_plan_file(file, "ranks", ranks);
}

// Starts the monitor of a host on which no launcher starts one. Collective over the ranks of a host, which all
// pass the same `host_key`: the first of them starts the monitor and gets it in `monitor`; the others wait for it. The
// monitor ends by itself, after the last rank. Returns its socket.
std::string share_monitor(comm::ControlPlane& control, const std::string& host_key,
                          const profile::MonitorOptions& options, const Clock& clock,
                          std::unique_ptr<profile::KeptMonitor>& monitor) {
  const std::string key = "run.agent/" + host_key;
  if (control.world().local_rank != 0) return control.get(key);
  monitor = std::make_unique<profile::KeptMonitor>(options, clock);
  control.set(key, monitor->socket());
  return monitor->socket();
}

// The launcher watches by it whether this rank gets on.
void share_pulse(LauncherLink& link, const Logger& log) {
  try {
    link.share_pulse(Pulse::own().share());
  } catch (const SystemError& error) {
    log->warn("the launcher does not notice if this rank hangs: {}", describe(error));
  }
}

// A launcher or keeper of this host sees by the pulses of its ranks which of them is stopped.
void watch_for_stopped_ranks(Membership& membership, const RankIdentity& identity, const config::Recovery& recovery,
                             const Logger& log) {
  constexpr std::chrono::seconds kPatience{10};
  const RankEnvironment& environment = identity.environment;
  const bool is_watched = environment.is_child() || environment.is_kept();
  if (is_watched || !recovery.watches_for_hangs() || environment.world.size == 1) return;
  membership.watch_for_stopped_ranks(identity.host.name, recovery.hang_time().value_or(kPatience), log);
}

}  // namespace

Nanoseconds process_start(const Clock& clock) {
  const Nanoseconds now = clock.monotonic();
  const std::uint64_t ticks = host::start_ticks(::getpid());
  timespec boot{};
  if (ticks == 0 || ::clock_gettime(CLOCK_BOOTTIME, &boot) != 0) return now;
  const auto since_boot = std::chrono::seconds(boot.tv_sec) + Nanoseconds(boot.tv_nsec);
  const auto started = Nanoseconds(static_cast<std::int64_t>(ticks) * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
  return now - std::max(Nanoseconds(0), since_boot - started);
}

Json versions_of(const RankOptions& options) {
  Json versions = options.versions.is_object() ? options.versions : Json::object();
  versions["dtrain"] = version();
  return versions;
}

LauncherConnection::LauncherConnection(const RankIdentity& identity, const Logger& log) {
  const RankEnvironment& environment = identity.environment;
  if (environment.is_child()) {
    name_ = "the launcher (pid " + std::to_string(environment.handover->launcher_pid) + ")";
    link_ = std::make_unique<SocketLink>(UniqueFd(environment.handover->link_fd));
    return;
  }
  if (environment.is_kept()) {
    name_ = "the keeper of this host (pid " + std::to_string(::getppid()) + ")";
    link_ = std::make_unique<SocketLink>(UniqueFd(environment.keeper_fd));
    return;
  }
  contact_ = environment.launcher.value();
  name_ = "the launcher (" + contact_.address + ":" + std::to_string(contact_.port) + ")";
  if (!contact_.secret_file.empty()) contact_.secrets = read_secret_file(contact_.secret_file);
  auto plane = std::make_unique<PlaneLink>(contact_, environment.world, identity.host.name, log);
  plane_ = plane.get();
  link_ = std::move(plane);
}

void LauncherConnection::remove_secret_file(const comm::World& world) const {
  if (contact_.secret_file.empty() || world.local_rank != 0) return;
  std::error_code ignored;
  std::filesystem::remove(contact_.secret_file, ignored);
}

RankSession::RankSession(const RankOptions& options)
    : log_(make_stderr_logger()),
      identity_(std::make_unique<RankIdentity>()),
      deadlines_(std::make_unique<ExitDeadlines>(log_)),
      stops_(std::make_unique<StopRequests>()),
      files_(std::make_unique<RankFiles>(clock_, log_)),
      failure_report_(std::make_unique<FailureReport>(*identity_, files_->events, clock_, log_)) {
  identity_->options = options;
  identity_->process_started = process_start(clock_);
}

std::unique_ptr<RankSession> RankSession::start(const RankOptions& options) {
  serve_nursery();  // first of all: it returns in a process that has no other traces of this rank's start
  std::unique_ptr<RankSession> session(new RankSession(options));
  RankSession& self = *session;
  prepare_for_limits();
  try {
    read_identity(*self.identity_);
    self.connect_launcher();
    self.assignment_ = std::make_unique<Assignment>(read_assignment(*self.identity_));
    self.connect_ranks();
    if (self.launcher_) self.launcher_->remove_secret_file(self.world());
    self.compare_ranks();
    self.open_folder();
    self.redirect_output();
    if (self.launcher_) share_pulse(self.launcher_->link(), self.log_);
    self.start_recording();
    self.make_communicator();
    watch_for_stopped_ranks(*self.membership_, *self.identity_, self.experiment().recovery, self.log_);
    self.membership_->on_failure([&self](const comm::RankFailure& failure) { self.on_rank_failure(failure); });
    // From here on a signal asks for a stop after the step. Before, it ends this process.
    self.signals_ = std::make_unique<RankSignals>();
    self.control().barrier("run.started");
  } catch (const std::exception& error) {
    self.failure_report_->report(error);
    throw;
  }
  self.failure_report_->watch_exit([&self](const std::exception& error) { self.fail(error); });
  if (self.launcher_) self.launcher_->link().send(state_message("started"));
  self.files_->events.write("rank_running");
  return session;
}

void RankSession::connect_launcher() {
  const RankEnvironment& environment = identity_->environment;
  if (!environment.is_launched() && !environment.is_kept()) return;
  launcher_ = std::make_unique<LauncherConnection>(*identity_, log_);
  failure_report_->set_launcher(launcher_->link());
  if (environment.is_child()) {
    for (const auto& [name, memory] : environment.handover->kept_memory) ::fcntl(memory, F_SETFD, FD_CLOEXEC);
    // The folder must be set before the link's thread starts, which writes an event when the launcher is gone.
    files_->folder.path = environment.handover->run_dir;
    files_->memory.folder = environment.handover->memory_folder;
    files_->memory.kept = !files_->memory.folder.empty();
    files_->events.open(files_->folder.events(), environment.world.rank, identity_->host.name);
  }
  launcher_->link().watch([this] { on_launcher_end(); }, [this](int signal) { stops_->launcher_asks(signal); });
}

void RankSession::connect_ranks() {
  const RankEnvironment& environment = identity_->environment;
  const std::chrono::milliseconds timeout = experiment().communication_timeout;
  comm::ControlOptions options{.world = environment.world,
                               .secret = read_run_secret(environment.run_secret_file),
                               .security = experiment().communication_security,
                               .timeout = timeout,
                               .log = log_};
  const bool tls = options.security == comm::Security::kTls;
  if (!needs_mpi(environment, experiment().communication_backend)) {
    membership_ = std::make_unique<Membership>();
    failure_report_->set_membership(*membership_);
    if (environment.world.size == 1) return connect_alone(*membership_, options);
    if (environment.world.local_size < environment.world.size) {
      options.host_name = identity_->host.name;
      return connect_by_store(*membership_, options, environment);
    }
    const auto& handover = environment.handover;
    const auto hint = [&environment] {
      return !environment.names_local_ranks && environment.master ? hint_of_other_host(*environment.master)
                                                                  : std::string();
    };
    return connect_by_file(
        *membership_, options,
        handover ? handover->rendezvous : rendezvous_path(private_folder(process_variables()), environment.job), hint);
  }
  if (tls) throw ConfigError("communication.security: " + config::not_with_tls("MPI"), kUseProof);
  PlaneLink* const plane = launcher_ ? launcher_->plane() : nullptr;
  const MpiArrival arrival(environment.world, environment.job, plane);
  // The launcher ends the job of its ranks when all of them have reported and saved.
  membership_ = std::make_unique<Membership>(comm::MpiJob::join({.timeout = timeout,
                                                                 .aborts = plane == nullptr,
                                                                 .missing = [&arrival] { return arrival.missing(); },
                                                                 .log = log_}));
  failure_report_->set_membership(*membership_);
  options.session = environment.job;
  if (launcher_) options.secret = launcher_->ranks_secret();
  connect_by_mpi(*membership_, options, environment.network_interface);
}

void RankSession::compare_ranks() {
  const bool several_hosts_allowed = membership_->mpi() != nullptr || membership_->reaches_other_hosts();
  hosts_ = std::make_unique<RankHosts>(
      compare_hosts(control(), identity_->host, identity_->environment.started_by, several_hosts_allowed));
  compare_experiments(control(), experiment(), evaluates() ? "--evaluate" + predictions().string() : to_string(mock()));
  // Throws for a backend that these hosts cannot use.
  (void)backend_for(experiment().communication_backend, *hosts_, membership_->mpi() != nullptr);
  const bool launcher_has_looked = identity_->environment.is_child();
  gpus_ = std::make_unique<RankGpus>(
      choose_gpus(control(), *hosts_, assignment_->slot_type, assignment_->gpus, !launcher_has_looked));
  const bool on_gpus = gpus_->on_gpus;
  const auto refusals = on_gpus ? config::refusals_on_gpus(experiment()) : config::refusals_on_cpus(experiment());
  if (on_gpus && identity_->world().size > 1 && experiment().communication_security == comm::Security::kTls) {
    throw AgreedError(experiment().file.string() + ": communication.security: " + config::not_with_tls("NCCL"),
                      kUseProof);
  }
  check_one_model(experiment(), *gpus_);
  if (refusals.empty()) return;
  throw AgreedError(experiment().file.string() + ": " + refusals.front().key + ": " + refusals.front().why,
                    on_gpus ? "resources.slot_type is auto, and every host has GPUs for its ranks"
                            : "resources.slot_type is auto, and not every host has GPUs for its ranks");
}

void RankSession::open_folder() {
  const RankEnvironment& environment = identity_->environment;
  RankFiles& files = *files_;
  if (!environment.is_launched()) {
    open_own_run(control(), *identity_, *assignment_, *hosts_, *gpus_, files, log_);
    const bool tells = environment.is_kept() && environment.world.local_rank == 0;
    if (tells) launcher_->link().send(folder_message(files.folder.path, files.resume_step));
  } else if (launcher_->plane()) {
    const LaunchOrders& orders = launcher_->plane()->orders();
    open_launched_folder(control(), orders, files);
    const ResumePoint point = open_launched_memory(control(), *identity_, experiment(), orders, files.memory, log_);
    files.resume_from = point.path;
    if (identity_->is_rank_0() && files.memory.kept) {
      if (!point.exists()) put_metrics_aside(files.folder);
      update_plan("lineage", to_json(files.memory.lineage));
      launcher_->link().send(memory_choice_message(files.memory.lineage, point.step));
    }
  }
  files.events.open(files.folder.events(), environment.world.rank, identity_->host.name);
  files.watch = FolderWatch(files.folder.path);
  if (identity_->is_rank_0()) {
    files.metrics.emplace(files.folder.metrics(), clock_, log_);
    files.tensorboard.emplace(files.folder.metrics_events(), clock_, log_);
  }
  if (environment.is_launched()) {
    update_plan("versions", versions_of(identity_->options));
    if (identity_->is_rank_0()) name_gpus_in_plan(files.folder.plan(), *gpus_);
    for (const std::string& warning : gpus_->warnings) {
      if (identity_->is_rank_0()) log_->warn("{}", warning);
    }
  }
  if (!environment.is_child()) files.events.write("rank_started", {{"start_ticks", host::start_ticks(::getpid())}});
}

void RankSession::redirect_output() {
  const RankEnvironment& environment = identity_->environment;
  const comm::World& world = environment.world;
  const bool launched = environment.is_launched();
  if (!environment.is_child()) {
    // mpirun gives ranks terminals that no person watches, so only a process started by itself may redraw its progress.
    const bool terminal = world.size == 1 && environment.started_by == "nothing" && !launched;
    const std::filesystem::path log_file = files_->folder.log(world.rank);
    files_->output.emplace(log_file, world.rank, world.size > 1 ? rank_prefix(world.rank) : "", terminal, clock_);
    failure_report_->set_output(*files_->output, log_file);
  }
  if (!identity_->is_rank_0()) return;
  if (!launcher_ && !identity_->options.evaluates) {
    files_->status.emplace(process_variables(), [this](const std::string& warning) { log_->warn("{}", warning); });
  }
  progress_ = std::make_unique<ProgressReport>(clock_, [this, launched](const Progress& progress) {
    if (launcher_) launcher_->link().send(progress_message(progress), true);
    if (!launched) files_->output->screen().progress(progress);
    if (files_->status) files_->status->take(progress, files_->folder.metrics());
  });
}

void RankSession::start_recording() {
  const comm::World& world = identity_->world();
  PlaneLink* const plane = launcher_ ? launcher_->plane() : nullptr;
  Recording::Options options{.header = {{"run", run_dir().filename().string()}},
                             .process_started = identity_->process_started};
  options.header["versions"] = versions_of(identity_->options);
  if (gpus_->on_gpus && gpus_->ranks[static_cast<std::size_t>(world.rank)]) {
    options.header["gpu"] = to_json(*gpus_->ranks[static_cast<std::size_t>(world.rank)]);
  }
  if (const auto& handover = identity_->environment.handover) {
    options.monitor_socket = handover->monitor_socket;
  } else {
    profile::MonitorOptions monitor{.profile_folder = files_->folder.profile(), .header = options.header};
    monitor.agent_id =
        plane ? plane->orders().agents[static_cast<std::size_t>(world.rank)] : hosts_->monitor_name(world.rank);
    monitor.local_ranks = hosts_->ranks_here();
    if (const auto& wanted = experiment().profiling.prometheus) monitor.prometheus = {wanted->address, wanted->port};
    options.monitor_socket = share_monitor(control(), hosts_->here().key, monitor, clock_, options.monitor);
    options.monitor_started = [this, plane, id = monitor.agent_id](pid_t pid) {
      files_->events.try_write("agent_started", {{"agent", id}, {"pid", pid}});
      if (plane) plane->report_host({hosts_->here().name, files_->is_launchers_folder, pid});
    };
    if (options.monitor) options.monitor_started(options.monitor->pid());
  }
  recording_ = std::make_unique<Recording>(std::move(options), *membership_, files_->events, clock_, log_);
}

void RankSession::make_communicator() {
  const comm::Backend backend = backend_for(experiment().communication_backend, *hosts_, membership_->mpi() != nullptr);
  membership_->make_communicator(
      backend,
      {.timeout = experiment().communication_timeout, .log = log_, .security = experiment().communication_security});
  update_plan("communication", {{"backend", communicator().backend()}, {"hosts", hosts_->count()}});
  if (!identity_->is_rank_0() || hosts_->count() == 1) return;
  log_->info("communication: {}, {} ranks on {} hosts", word_of(backend), world().size, hosts_->count());
}

}  // namespace dtrain::rank
