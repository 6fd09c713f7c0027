#include "run_memory.h"

#include <chrono>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/config/experiment.h"

namespace dtrain::rank {
namespace {

constexpr const char* kHostsKey = "run.memory-of-hosts";
constexpr const char* kMemoryKey = "run.memory";
constexpr std::size_t kIdBytes = 8;
constexpr std::chrono::minutes kStays{10};

bool keeps_states(const RankIdentity& identity, const config::Experiment& experiment) {
  const bool restarts = identity.environment.is_kept() && experiment.max_restarts > 0;
  const RankOptions& options = identity.options;
  return restarts && experiment.recovery.keeps_states() && !options.mock.any() && !options.evaluates;
}

Json chosen_json(const std::optional<checkpoints::ChosenState>& state) {
  if (!state) return {};
  return {{"step", state->step}, {"epoch", state->epoch}, {"kind", static_cast<int>(state->kind)}};
}

std::optional<checkpoints::ChosenState> chosen_state_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return checkpoints::ChosenState{json.at("step").get<std::int64_t>(), json.at("epoch").get<std::int64_t>(),
                                  static_cast<checkpoints::StateKind>(json.at("kind").get<int>())};
}

// Says exactly what is missing where the furthest state in memory is not whole.
void tell_of_lost_state(const std::optional<checkpoints::LostState>& lost, const ResumePoint& point,
                        const Logger& log) {
  if (!lost || lost->step <= point.step) return;
  log->warn(
      "the state of batch {} in memory is lost: no host has what belongs to {} (their host is gone, and so are those "
      "with copies of it; recovery.copies says how many there are); the run goes on from {}",
      lost->step, (lost->ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(lost->ranks, ", "),
      point.path.empty() ? "its beginning" : "batch " + std::to_string(point.step) + ", " + point.path.string());
}

// Where no keeper holds the folder, it must outlive the ranks of an attempt until those of the next one find it.
void make_memory_folder(const RankIdentity& identity, const RunFolder& folder, std::chrono::seconds patience,
                        RunMemory& memory) {
  const bool is_kept = identity.environment.is_kept();
  checkpoints::MemoryFolder made(folder.path, memory.host, is_kept ? ::getppid() : ::getpid(),
                                 is_kept ? std::chrono::seconds(0) : kStays + 2 * patience);
  memory.problem = made.problem();
  if (!memory.problem.empty()) return;
  try {
    if (!memory.begins_with) checkpoints::begin_lineage(memory.folder, memory.lineage.id, std::nullopt);
    made.leave();
  } catch (const SystemError& error) {
    memory.problem = describe(error);
  }
}

std::vector<checkpoints::HostStates> gather_states(comm::ControlPlane& control, const std::filesystem::path& run,
                                                   const RunMemory& memory) {
  const bool looks = memory.kept && !run.empty() && control.world().local_rank == 0;
  const auto here =
      looks ? checkpoints::look_at_host(checkpoints::memory_folder_of(run, memory.host)) : checkpoints::HostStates();
  std::vector<checkpoints::HostStates> hosts;
  for (const std::string& told : control.gather(kHostsKey, to_line(to_json(here)))) {
    hosts.push_back(checkpoints::host_states_of(Json::parse(told)));
  }
  return hosts;
}

// Rank 0 has chosen where the attempt begins.
void begin_attempt(RunMemory& memory) {
  memory.lineage.id = random_hex(kIdBytes);
  if (!memory.begins_with) return;
  memory.lineage.step = memory.begins_with->step;
  // The attempts before the last one had another state of this step, unless the last one has begun with it.
  if (memory.lineage.step == memory.last.step) memory.lineage.before = memory.last.before;
  memory.lineage.before.push_back(memory.last.id);
}

}  // namespace

std::vector<checkpoints::HostStates> look_at_hosts(comm::ControlPlane& control, const RankIdentity& identity,
                                                   const config::Experiment& experiment, RunMemory& memory) {
  memory.kept = keeps_states(identity, experiment);
  memory.host = identity.environment.keeper_host;
  return gather_states(control, identity.options.run_dir, memory);
}

ResumePoint choose_resume_point(const RunFolder& folder, const std::vector<checkpoints::HostStates>& hosts,
                                const RankIdentity& identity, RunMemory& memory, const Logger& log) {
  memory.last = checkpoints::lineage_of(read_json(folder.plan()).value("lineage", Json()));
  memory.begins_with = checkpoints::choose_state(hosts, memory.last, identity.world().size);
  ResumePoint point;
  if (memory.begins_with) {
    const auto in_memory = checkpoints::memory_folder_of(folder.path, memory.host);
    const ResumePoint state{.path = checkpoints::whole_folder(in_memory, memory.begins_with->step),
                            .step = memory.begins_with->step,
                            .epoch = memory.begins_with->epoch};
    point = find_resume_point(folder, state);
    if (point.path != state.path) memory.begins_with.reset();
  } else {
    point = find_resume_point(folder);
  }
  tell_of_lost_state(checkpoints::lost_state(hosts, memory.last, memory.begins_with), point, log);
  begin_attempt(memory);
  return point;
}

void begin_anew(RunMemory& memory) {
  memory.lineage.id = random_hex(kIdBytes);
}

void open_memory(comm::ControlPlane& control, const RankIdentity& identity, const config::Experiment& experiment,
                 const RunFolder& folder, RunMemory& memory) {
  if (identity.is_rank_0()) {
    const Json decided = {{"lineage", to_json(memory.lineage)},
                          {"last", to_json(memory.last)},
                          {"begins_with", chosen_json(memory.begins_with)}};
    control.set(kMemoryKey, to_line(memory.kept ? decided : Json()));
  }
  if (!memory.kept) return;
  const Json told = Json::parse(control.get(kMemoryKey));
  memory.kept = !told.is_null();
  if (!memory.kept) return;
  memory.lineage = checkpoints::lineage_of(told.at("lineage"));
  memory.last = checkpoints::lineage_of(told.at("last"));
  memory.begins_with = chosen_state_of(told.at("begins_with"));
  memory.folder = checkpoints::memory_folder_of(folder.path, memory.host);
  if (identity.world().local_rank != 0) return;
  const auto patience = std::chrono::ceil<std::chrono::seconds>(experiment.communication_timeout);
  make_memory_folder(identity, folder, patience, memory);
}

void remove_memory(const RunMemory& memory, const comm::World& world) {
  if (memory.folder.empty() || world.local_rank != 0) return;
  std::error_code code;
  std::filesystem::remove_all(memory.folder, code);
}

ResumePoint open_launched_memory(comm::ControlPlane& control, const RankIdentity& identity,
                                 const config::Experiment& experiment, const LaunchOrders& orders, RunMemory& memory,
                                 const Logger& log) {
  const RunFolder folder{orders.run_dir};
  memory.kept = orders.keeps_states && !identity.options.evaluates;
  memory.host = orders.host_of(identity.world().rank);
  ResumePoint point{.path = orders.resume_from, .step = orders.resume_step};
  if (!memory.kept) return point;
  const auto hosts = gather_states(control, folder.path, memory);
  if (identity.is_rank_0()) {
    memory.last = orders.lineage;
    memory.begins_with = checkpoints::choose_state(hosts, memory.last, identity.world().size);
    if (memory.begins_with && memory.begins_with->step < orders.resume_step) memory.begins_with.reset();
    if (memory.begins_with) point.step = memory.begins_with->step;
    tell_of_lost_state(checkpoints::lost_state(hosts, memory.last, memory.begins_with), point, log);
    begin_attempt(memory);
  }
  open_memory(control, identity, experiment, folder, memory);
  if (memory.begins_with) {
    point = {.path = checkpoints::whole_folder(memory.folder, memory.begins_with->step),
             .step = memory.begins_with->step,
             .epoch = memory.begins_with->epoch};
  }
  return point;
}

}  // namespace dtrain::rank
