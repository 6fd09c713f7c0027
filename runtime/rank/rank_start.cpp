// The start of a rank, step by step.
#include <unistd.h>

#include <functional>

#include "compare_ranks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/comm/control.h"
#include "dtrain/host/processes.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/launcher_duties.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/rendezvous.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/stop_requests.h"
#include "failure_report.h"
#include "membership.h"
#include "rank_identity.h"
#include "rank_output.h"

namespace dtrain::run {

// A run that no launcher has started: rank 0 makes the run's folder, or goes on in it, and writes the plan.

namespace {

constexpr const char* kFolderKey = "run.folder";
constexpr const char* kUseProof = "use communication.security: proof (docs/security.md)";
constexpr const char* kResumeKey = "run.resume-from";
constexpr char kBegins = '=';  // before the folder's name
constexpr char kGoesOn = '+';
constexpr char kRefused = '!';  // before the error

std::vector<std::string> plan_warnings(const RankIdentity& identity, const Assignment& assignment,
                                       const RankGpus& gpus) {
  const config::Experiment& experiment = assignment.experiment;
  const int slots = experiment.resources.slots_per_trial;
  const int size = identity.world().size;
  std::vector<std::string> warnings;
  if (slots > 0 && size != slots) {
    warnings.push_back("the world size is " + std::to_string(size) + ", as " + identity.environment.started_by +
                       " says; resources.slots_per_trial (" + std::to_string(slots) + ") is not used");
  }
  if (!experiment.variables_of_ranks(gpus.on_gpus).empty()) {
    warnings.emplace_back(
        "environment.environment_variables were set after this program's libraries were loaded: what those read then "
        "(OMP_NUM_THREADS, LD_PRELOAD, ...) must be set before the ranks start; dtrain launch does that");
  }
  if (experiment.max_restarts != config::kDefaultRestarts && experiment.max_restarts > 0) {
    warnings.emplace_back("max_restarts has no effect here: it is dtrain launch that starts ranks again");
  }
  if (!assignment.split.warning.empty()) warnings.push_back(assignment.split.warning);
  if (!gpus.why_cpu.empty()) {
    const std::string unused = gpus_text(assignment.gpus.gpus);
    if (!unused.empty()) warnings.push_back(unused_gpus_warning(unused, gpus.why_cpu));
  }
  warnings.insert(warnings.end(), gpus.warnings.begin(), gpus.warnings.end());
  const std::string unused_rules = gpus.on_gpus ? "" : launcher_duties().unused_rules_warning(experiment);
  if (!unused_rules.empty()) warnings.push_back(unused_rules);
  if (identity.options.mock.any()) warnings.push_back(mock_text(identity.options.mock));
  return warnings;
}

// Returns this host's remembered limits. Ranks without a launcher measure none: the others would wait for one rank.
Json known_limits(const RankIdentity& identity, const std::string& host, config::Matmul matmul) {
  const Variables variables = process_variables();
  const int local_size = identity.world().local_size;
  const auto of_user = host::threads_of_user(variables);
  const int threads = of_user ? *of_user : host::threads_of_process(host::process_cores(), local_size);
  auto limits = launcher_duties().known_limits(threads, local_size, variables);
  if (!limits) return {};
  if (matmul == config::Matmul::kDefault) limits->matmul = profile::MatmulPath::kDefault;
  return {{host, profile::to_json(*limits)}};
}

void write_own_plan(const RunFolder& folder, const RankIdentity& identity, const Assignment& assignment,
                    const RankHosts& hosts, const RankGpus& gpus, const Logger& log) {
  const RankOptions& options = identity.options;
  config::find_rules();  // the plan shows all of them
  PlanFacts facts{.experiment = assignment.experiment,
                  .overrides = options.overrides,
                  .started_by = identity.environment.started_by};
  facts.command = {options.program, options.experiment_file.string()};
  facts.split = assignment.split;
  facts.warnings = plan_warnings(identity, assignment, gpus);
  for (const std::string& warning : facts.warnings) log->warn("{}", warning);
  if (options.mock.any()) facts.more["mock"] = to_json(options.mock);
  if (const auto storage = checkpoints::storage_of_run(folder.path); storage != folder.path / "checkpoints")
    facts.more["checkpoint_folder"] = storage.string();
  facts.on_gpus = gpus.on_gpus;
  for (int rank = 0; rank < identity.world().size; ++rank) {
    RankPlacement place{.rank = rank, .host = hosts.of(rank).name};
    if (gpus.on_gpus) place.gpu = gpus.ranks[static_cast<std::size_t>(rank)];
    facts.placement.push_back(std::move(place));
  }
  if (!gpus.on_gpus) {
    const Json limits = known_limits(identity, hosts.of(0).name, facts.experiment.optimizations.matmul);
    if (!limits.is_null()) facts.more["limits"] = limits;
  }
  facts.versions = versions_of(options);
  write_plan_file(folder.plan(), plan_json(facts));
}

// Rank 0 makes the folder with `make`, or goes on in it and sets `continues`; the other ranks learn both. If `make`
// throws a ConfigError, all ranks throw it: the first one to report an error names the cause.
RunFolder open_own_folder(comm::ControlPlane& control, const RankHosts& hosts, const std::function<RunFolder()>& make,
                          bool& continues) {
  RunFolder folder;
  if (control.world().rank == 0) {
    try {
      folder = make();
    } catch (const ConfigError& error) {
      control.set(kFolderKey, kRefused + to_line({{"cause", error.what()}, {"remedy", error.remedy()}}));
      throw AgreedError(error.what(), error.remedy());
    }
    control.set(kFolderKey, (continues ? kGoesOn : kBegins) + folder.path.string());
  } else {
    const std::string told = control.get(kFolderKey);
    if (told.front() == kRefused) {
      const Json error = Json::parse(told.substr(1));
      throw AgreedError(error.at("cause").get<std::string>(), error.at("remedy").get<std::string>());
    }
    continues = told.front() == kGoesOn;
    folder.path = told.substr(1);
  }
  check_folder_is_shared(control, hosts, folder.path);
  return folder;
}

// On rank 0 of a run that goes on: returns the checkpoint to go on from. `overrides`: the run's and new ones.
ResumePoint reopen_own_folder(const RunFolder& folder, const config::Experiment& experiment,
                              const std::vector<std::string>& overrides, const std::function<void()>& write_plan,
                              const Logger& log) {
  const ContinuedRun run = read_continued_run(folder.path.string());
  check_not_in_progress(folder);
  check_storage_stays(run, overrides, experiment);
  const std::string claimed = claim_checkpoint_folder(folder);
  ResumePoint point = find_resume_point(folder);
  point.claimed = claimed;
  check_goes_on(run, experiment, point);
  put_aside(folder, {.metrics = point.exists()});
  write_plan();
  update_plan_file(folder.plan(), "before", plan_before(run));
  for (const std::string& text : differences_from(run, read_json(folder.plan()))) log->warn("{}", text);
  for (const std::string& text : warnings_of(point)) log->warn("{}", text);
  log->info("the run goes on from {}", text_of(point));
  return point;
}

// Opens the run's folder, which all hosts must see, and on rank 0 also its lock and its events: a new folder, or with
// --continue that of the run, in which the files of the attempt before are put aside. Logs the plan's warnings and
// where a run goes on. Collective over `control`. ConfigError if the run is in progress, or as create_run_folder(),
// check_checkpoint_storage(), check_goes_on() and check_storage_stays(); the other ranks throw one that refers to rank
// 0.
void open_own_run(comm::ControlPlane& control, const RankIdentity& identity, const Assignment& assignment,
                  const RankHosts& hosts, const RankGpus& gpus, RankFiles& files, const Logger& log) {
  const RankOptions& options = identity.options;
  const config::Experiment& experiment = assignment.experiment;
  ResumePoint point;
  const auto write_plan = [&](const RunFolder& folder) {
    if (!options.mock.any()) make_checkpoint_folder(folder, experiment.checkpoint_storage);
    write_own_plan(folder, identity, assignment, hosts, gpus, log);
  };
  bool continues = options.continues;
  const auto make = [&] {
    launcher_duties();  // where they are missing, the folder stays as it is
    check_checkpoint_storage(experiment.checkpoint_storage);
    std::error_code code;
    continues =
        continues || (options.continues_if_there && std::filesystem::exists(RunFolder{options.run_dir}.plan(), code));
    if (continues) {
      RunFolder folder{options.run_dir};
      files.lock = RunLock::take(folder);
      point = reopen_own_folder(
          folder, experiment, options.overrides, [&] { write_plan(folder); }, log);
      return folder;
    }
    RunFolder made = create_run_folder(options.run_dir, experiment.name, experiment.text, experiment.private_mode());
    files.lock = RunLock::take(made);
    write_plan(made);
    return made;
  };
  files.folder = open_own_folder(control, hosts, make, continues);
  if (identity.is_rank_0()) {
    files.events.open(files.folder.events(), 0, identity.host.name);
    if (continues) files.events.write("continued");
    Json fields = to_json(point);
    fields["attempt"] = attempt_number(files.folder);
    files.events.write("attempt_started", fields);
  }
  if (!continues) return;
  if (identity.is_rank_0()) control.set(kResumeKey, point.path.string());
  files.resume_from = control.get(kResumeKey);
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

// Starts the profiling agent of a host on which no launcher starts one. Collective over the ranks of a host, which all
// pass the same `host_key`: the first of them starts the agent and gets it in `agent`; the others wait for it. The
// agent ends by itself, after the last rank. Returns its socket.
std::string share_agent(comm::ControlPlane& control, const std::string& host_key,
                        const profile::MonitorOptions& options, const Clock& clock,
                        std::unique_ptr<profile::KeptMonitor>& agent) {
  const std::string key = "run.agent/" + host_key;
  if (control.world().local_rank != 0) return control.get(key);
  agent = std::make_unique<profile::KeptMonitor>(options, clock);
  control.set(key, agent->socket());
  return agent->socket();
}

}  // namespace

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
    self.start_recording();
    self.make_communicator();
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
  if (!environment.is_launched()) return;
  launcher_ = std::make_unique<LauncherConnection>(*identity_, log_);
  failure_report_->set_launcher(launcher_->link());
  if (environment.is_child()) {
    // The folder must be set before the link's thread starts, which writes an event when the launcher is gone.
    files_->folder.path = environment.handover->run_dir;
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
    return connect_by_file(
        *membership_, options,
        handover ? handover->rendezvous : rendezvous_path(private_folder(process_variables()), environment.job));
  }
  if (tls) throw ConfigError("communication.security: " + config::not_with_tls("MPI"), kUseProof);
  PlaneLink* const plane = launcher_ ? launcher_->plane() : nullptr;
  const MpiArrival arrival(environment.world, environment.job, plane);
  membership_ = std::make_unique<Membership>(
      comm::MpiJob::join({.timeout = timeout, .missing = [&arrival] { return arrival.missing(); }, .log = log_}));
  failure_report_->set_membership(*membership_);
  options.session = environment.job;
  if (launcher_) options.secret = launcher_->ranks_secret();
  connect_by_mpi(*membership_, options, environment.network_interface);
}

void RankSession::compare_ranks() {
  const bool several_hosts_allowed = membership_->mpi() != nullptr || membership_->reaches_other_hosts();
  hosts_ = std::make_unique<RankHosts>(
      compare_hosts(control(), identity_->host, identity_->environment.started_by, several_hosts_allowed));
  compare_experiments(control(), experiment(), mock());
  // Throws for a backend that these hosts cannot use.
  (void)backend_for(experiment().communication_backend, *hosts_, membership_->mpi() != nullptr);
  const bool launcher_has_looked = identity_->environment.is_child();
  gpus_ = std::make_unique<RankGpus>(
      choose_gpus(control(), *hosts_, assignment_->slot_type, assignment_->gpus, !launcher_has_looked));
  const bool on_gpus = gpus_->on_gpus;
  const std::vector<std::string> unsupported =
      on_gpus ? config::keys_not_for_gpus(experiment()) : config::keys_not_for_cpus(experiment());
  if (on_gpus && identity_->world().size > 1 && experiment().communication_security == comm::Security::kTls) {
    throw AgreedError(experiment().file.string() + ": communication.security: " + config::not_with_tls("NCCL"),
                      kUseProof);
  }
  if (unsupported.empty()) return;
  throw AgreedError(experiment().file.string() + ": " + unsupported.front() + ": " +
                        (on_gpus ? config::kNotForGpus : config::kNotForCpus),
                    on_gpus ? "resources.slot_type is auto, and every host has GPUs for its ranks"
                            : "resources.slot_type is auto, and not every host has GPUs for its ranks");
}

void RankSession::open_folder() {
  const RankEnvironment& environment = identity_->environment;
  RankFiles& files = *files_;
  if (!environment.is_launched()) {
    open_own_run(control(), *identity_, *assignment_, *hosts_, *gpus_, files, log_);
  } else if (launcher_->plane()) {
    open_launched_folder(control(), launcher_->plane()->orders(), files);
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
  progress_ = std::make_unique<ProgressReport>(clock_, [this](const Progress& progress) {
    if (launcher_) {
      launcher_->link().send(progress_message(progress), true);
    } else {
      files_->output->screen().progress(progress);
    }
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
    options.agent_socket = handover->agent_socket;
  } else {
    profile::MonitorOptions agent{.profile_folder = files_->folder.profile(), .header = options.header};
    agent.agent_id =
        plane ? plane->orders().agents[static_cast<std::size_t>(world.rank)] : hosts_->agent_name(world.rank);
    agent.local_ranks = hosts_->ranks_here();
    if (const auto& wanted = experiment().profiling.prometheus) agent.prometheus = {wanted->address, wanted->port};
    options.agent_socket = share_agent(control(), hosts_->here().key, agent, clock_, options.agent);
    options.agent_started = [this, plane, id = agent.agent_id](pid_t pid) {
      files_->events.try_write("agent_started", {{"agent", id}, {"pid", pid}});
      if (plane) plane->report_host({hosts_->here().name, files_->is_launchers_folder, pid});
    };
    if (options.agent) options.agent_started(options.agent->pid());
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

}  // namespace dtrain::run
