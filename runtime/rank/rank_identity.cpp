#include "rank_identity.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "dtrain/rank/rendezvous.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {
namespace {

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

void read_identity(RankIdentity& identity) {
  raise_open_files();  // rank 0 has two connections to every other rank; the profiling agent inherits the limit
  identity.environment = read_rank_environment(process_variables());
  unset_process_variable(host::kRankMark);  // processes that outlive this program must not hold the slots
  unset_process_variable("DTRAIN_SECRET");  // nor be able to join the run as a rank
  identity.host = host::host_identity();
  if (identity.environment.world.host.empty()) identity.environment.world.host = identity.host.key;
}

Assignment read_assignment(const RankIdentity& identity) {
  const RankOptions& options = identity.options;
  const bool launched = identity.environment.is_launched();
  try {
    Assignment assignment{.experiment =
                              config::read_experiment(options.experiment_file, options.overrides, options.contents)};
    const config::Experiment& experiment = assignment.experiment;
    share_new_files(experiment);
    check_kind(experiment, options.for_model);
    check_model_files(experiment);
    check_mock(options.mock, identity.world().size);
    assignment.split = config::split_batch(experiment.global_batch_size, identity.world().size);
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

}  // namespace dtrain::rank
