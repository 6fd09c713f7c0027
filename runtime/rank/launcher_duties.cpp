// The duties of a launcher in a run that no launcher has started: rank 0 makes the run's folder, or goes on in it, and
// writes the plan. The code of the others is in a module, which a rank opens where it needs one.
#include "dtrain/rank/launcher_duties.h"

#include <chrono>
#include <functional>
#include <thread>

#include "compare_ranks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/log.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/comm/control.h"
#include "dtrain/config/profiling.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/host_claims.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/resume.h"
#include "membership.h"
#include "rank_output.h"
#include "rank_start.h"
#include "run_memory.h"

namespace dtrain::rank {

namespace {

// The module links analysis, which registers the rules.
void load_rules() {
  launcher_duties();
}

// Before main(): an experiment file may be the first thing that a rank reads.
[[maybe_unused]] const bool kFindsRules = config::find_rules_by(load_rules);

}  // namespace

const LauncherDuties& launcher_duties() {
  static const LauncherDuties duties = [] {
    void* const factory = open_module<ConfigError>({.name = "dtrain_launcher_duties",
                                                    .needs = {},
                                                    .factory = "dtrain_launcher_duties",
                                                    .what = "the part of dtrain that has the rules and the report",
                                                    .remedy_needs = "",
                                                    .remedy_module = "build it (make build), or install dtrain anew"});
    return reinterpret_cast<LauncherDuties (*)()>(factory)();
  }();
  return duties;
}

namespace {

constexpr std::chrono::seconds kLastAttemptEnds{70};  // longer than ranks without a launcher may take to save
constexpr const char* kFolderKey = "run.folder";
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
  const bool is_kept = identity.environment.is_kept();
  if (!is_kept && experiment.max_restarts != config::kDefaultRestarts && experiment.max_restarts > 0) {
    const bool by_torchrun = identity.environment.most_restarts.has_value();
    warnings.emplace_back("max_restarts has no effect here: it is " +
                          std::string(by_torchrun ? "torchrun" : "dtrain launch") + " that starts ranks again" +
                          (by_torchrun ? ", as often as its --max-restarts says" : ""));
  }
  if (!experiment.tracking.empty()) {
    warnings.emplace_back(
        "tracking has no effect here: dtrain launch starts what shows the run in a tracker; `dtrain follow RUN --to " +
        std::string(config::word_of(config::kTrackerTools, experiment.tracking.front().tool)) + "` does it by hand");
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

// Returns the same for the GPUs of rank 0's host.
Json known_gpu_limits(const std::string& host, const std::vector<RankPlacement>& placement) {
  std::vector<std::string> gpus;
  for (const RankPlacement& place : placement) {
    if (place.host == host && place.gpu) gpus.push_back(place.gpu->id());
  }
  if (gpus.empty()) return {};
  Json kinds = Json::array();
  for (const profile::GpuLimits& limits : launcher_duties().known_gpu_limits(gpus, process_variables())) {
    kinds.push_back(profile::to_json(limits));
  }
  if (kinds.empty()) return {};
  return {{host, std::move(kinds)}};
}

void write_own_plan(const RunFolder& folder, const RankIdentity& identity, const Assignment& assignment,
                    const RankHosts& hosts, const RankGpus& gpus, const RunMemory& memory, const Logger& log) {
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
  if (memory.kept) facts.more["lineage"] = to_json(memory.lineage);
  facts.on_gpus = gpus.on_gpus;
  for (int rank = 0; rank < identity.world().size; ++rank) {
    RankPlacement place{.rank = rank, .host = hosts.of(rank).name};
    if (gpus.on_gpus) place.gpu = gpus.ranks[static_cast<std::size_t>(rank)];
    facts.placement.push_back(std::move(place));
  }
  if (!gpus.on_gpus) {
    const Json limits = known_limits(identity, hosts.of(0).name, facts.experiment.optimizations.matmul);
    if (!limits.is_null()) facts.more["limits"] = limits;
  } else {
    const Json limits = known_gpu_limits(hosts.of(0).name, facts.placement);
    if (!limits.is_null()) facts.more["gpu_limits"] = limits;
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

// On rank 0 of a run that goes on: returns the checkpoint to go on from, which `find` finds. `overrides`: the run's and
// new ones.
ResumePoint reopen_own_folder(const RunFolder& folder, const config::Experiment& experiment,
                              const std::vector<std::string>& overrides, bool is_restart,
                              const std::function<ResumePoint()>& find, const std::function<void()>& write_plan,
                              const Logger& log) {
  ContinuedRun run = read_continued_run(folder.path.string());
  if (is_restart) --run.number;  // no user continues the run
  check_not_in_progress(folder);
  check_virtual_ranks_stay(run, experiment);
  check_storage_stays(run, overrides, experiment);
  const std::string claimed = claim_checkpoint_folder(folder);
  ResumePoint point = find();
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

// torchrun starts ranks again with the same command, and does not know the run's folder. A script that dtrain only
// records goes on by itself.
bool remembers_folder(const RankEnvironment& environment, const config::Experiment& experiment) {
  const bool by_torchrun = environment.most_restarts.value_or(0) > 0;
  return by_torchrun && environment.master && environment.master->is_served && experiment.as_is == config::AsIs::kOff;
}

constexpr const char* kGiveFolder = "to go on after a restart, give the run's folder: --run-dir DIR --or-continue";

void remember_folder(const RankEnvironment& environment, const RunFolder& folder, const Logger& log) {
  try {
    remember_folder(*environment.master, folder.path);
  } catch (const CommError& error) {
    log->warn("torchrun's store does not take the run's folder: {}; {}", error.what(), kGiveFolder);
  }
}

std::filesystem::path folder_of_last_attempt(const RankEnvironment& environment, const Logger& log) {
  std::string why = "no rank has told it";
  try {
    std::filesystem::path folder = remembered_folder(*environment.master);
    if (!folder.empty()) return folder;
  } catch (const CommError& error) {
    why = error.what();
  }
  log->warn("torchrun has started the ranks again, and its store does not have the run's folder: {}; {}", why,
            kGiveFolder);
  return {};
}

// Returns what starts the ranks again after a failure. Empty: their launcher or their keeper does.
std::string text_of_restarts(const RankEnvironment& environment) {
  if (environment.world.size == 1) return {};
  const auto& most = environment.most_restarts;
  if (most && environment.restart > 0) {
    return "torchrun has started the ranks again: restart " + std::to_string(environment.restart) + " of " +
           std::to_string(*most);
  }
  if (most && *most == 0) {
    return "torchrun does not start the ranks again after a failure: with --max-restarts 5, for example, it does, and "
           "the run goes on from its newest checkpoint";
  }
  const bool by_mpi = environment.started_by == "Open MPI";
  if (!by_mpi && environment.started_by != "Slurm") return {};
  return std::string("nothing starts these ranks again after a failure: dtrain launch does, with launcher: ") +
         (by_mpi ? "mpi" : "slurm") + " in the cluster file";
}

// Ranks of the last attempt whose keeper is dead may have to end their step, and to save.
RunLock take_lock_of_last_attempt(const RunFolder& folder, int restart) {
  const std::vector<std::string> gone = hosts_gone(folder, restart);
  const auto deadline = std::chrono::steady_clock::now() + kLastAttemptEnds;
  for (;;) {
    try {
      RunLock lock = RunLock::take(folder, gone);
      check_not_in_progress(folder);
      return lock;
    } catch (const ConfigError&) {
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

void open_own_run(comm::ControlPlane& control, const RankIdentity& identity, const Assignment& assignment,
                  const RankHosts& hosts, const RankGpus& gpus, RankFiles& files, const Logger& log) {
  const RankOptions& options = identity.options;
  const config::Experiment& experiment = assignment.experiment;
  ResumePoint point;
  const auto write_plan = [&](const RunFolder& folder) {
    if (!options.mock.any()) make_checkpoint_folder(folder, experiment.checkpoint_storage);
    write_own_plan(folder, identity, assignment, hosts, gpus, files.memory, log);
  };
  const auto in_memory = look_at_hosts(control, identity, experiment, files.memory);
  const RankEnvironment& environment = identity.environment;
  const bool is_restart = environment.restart > 0;
  bool continues = options.continues;
  RunFolder asked{options.run_dir};
  const auto make = [&] {
    launcher_duties();  // where they are missing, the folder stays as it is
    check_checkpoint_storage(experiment.checkpoint_storage);
    bool may_continue = options.continues_if_there;
    if (is_restart && remembers_folder(environment, experiment)) {
      const std::filesystem::path last = folder_of_last_attempt(environment, log);
      may_continue = may_continue || !last.empty();
      if (asked.path.empty()) asked.path = last;
    }
    std::error_code code;
    continues = continues || (may_continue && std::filesystem::exists(asked.plan(), code));
    if (continues) {
      RunFolder folder = asked;
      files.lock = is_restart ? take_lock_of_last_attempt(folder, environment.restart) : RunLock::take(folder);
      point = reopen_own_folder(
          folder, experiment, options.overrides, is_restart,
          [&] { return choose_resume_point(folder, in_memory, identity, files.memory, log); },
          [&] { write_plan(folder); }, log);
      return folder;
    }
    RunFolder made = create_run_folder(asked.path, experiment.name, experiment.text, experiment.private_mode());
    files.lock = RunLock::take(made);
    begin_anew(files.memory);
    write_plan(made);
    return made;
  };
  files.folder = open_own_folder(control, hosts, make, continues);
  open_memory(control, identity, experiment, files.folder, files.memory);
  if (identity.is_rank_0()) {
    files.events.open(files.folder.events(), 0, identity.host.name);
    if (continues && !is_restart) files.events.write("continued");
    Json fields = to_json(point);
    fields["attempt"] = attempt_number(files.folder);
    files.events.write("attempt_started", fields);
    if (remembers_folder(environment, experiment)) remember_folder(environment, files.folder, log);
    if (const std::string text = text_of_restarts(environment); !text.empty()) log->info("{}", text);
  }
  if (!continues) return;
  files.resume_step = point.step;
  if (identity.is_rank_0()) control.set(kResumeKey, point.path.string());
  files.resume_from = control.get(kResumeKey);
}

}  // namespace dtrain::rank
