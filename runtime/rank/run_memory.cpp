#include "run_memory.h"

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

void make_memory_folder(const RankIdentity& identity, const RunFolder& folder, RunMemory& memory) {
  checkpoints::MemoryFolder made(folder.path, identity.environment.keeper_host, /*owner=*/::getppid());
  memory.problem = made.problem();
  if (!memory.problem.empty()) return;
  try {
    if (!memory.begins_with) checkpoints::begin_lineage(memory.folder, memory.lineage.id, std::nullopt);
    made.leave();
  } catch (const SystemError& error) {
    memory.problem = describe(error);
  }
}

}  // namespace

std::vector<checkpoints::HostStates> look_at_hosts(comm::ControlPlane& control, const RankIdentity& identity,
                                                   const config::Experiment& experiment, RunMemory& memory) {
  memory.kept = keeps_states(identity, experiment);
  const auto& run = identity.options.run_dir;
  const bool looks = memory.kept && !run.empty() && identity.world().local_rank == 0;
  const auto here =
      looks ? checkpoints::look_at_host(checkpoints::memory_folder_of(run, identity.environment.keeper_host))
            : checkpoints::HostStates();
  std::vector<checkpoints::HostStates> hosts;
  for (const std::string& told : control.gather(kHostsKey, to_line(to_json(here)))) {
    hosts.push_back(checkpoints::host_states_of(Json::parse(told)));
  }
  return hosts;
}

ResumePoint choose_resume_point(const RunFolder& folder, const std::vector<checkpoints::HostStates>& hosts,
                                const RankIdentity& identity, RunMemory& memory, const Logger& log) {
  memory.last = checkpoints::lineage_of(read_json(folder.plan()).value("lineage", Json()));
  memory.begins_with = checkpoints::choose_state(hosts, memory.last, identity.world().size);
  ResumePoint point;
  if (memory.begins_with) {
    const auto in_memory = checkpoints::memory_folder_of(folder.path, identity.environment.keeper_host);
    const ResumePoint state{.path = checkpoints::whole_folder(in_memory, memory.begins_with->step),
                            .step = memory.begins_with->step,
                            .epoch = memory.begins_with->epoch};
    point = find_resume_point(folder, state);
    if (point.path != state.path) memory.begins_with.reset();
  } else {
    point = find_resume_point(folder);
  }
  tell_of_lost_state(checkpoints::lost_state(hosts, memory.last, memory.begins_with), point, log);
  memory.lineage.id = random_hex(kIdBytes);
  if (memory.begins_with) {
    memory.lineage.step = point.step;
    // The attempts before the last one had another state of this step, unless the last one has begun with it.
    if (point.step == memory.last.step) memory.lineage.before = memory.last.before;
    memory.lineage.before.push_back(memory.last.id);
  }
  return point;
}

void begin_anew(RunMemory& memory) {
  memory.lineage.id = random_hex(kIdBytes);
}

void open_memory(comm::ControlPlane& control, const RankIdentity& identity, const RunFolder& folder,
                 RunMemory& memory) {
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
  memory.folder = checkpoints::memory_folder_of(folder.path, identity.environment.keeper_host);
  if (identity.world().local_rank == 0) make_memory_folder(identity, folder, memory);
}

}  // namespace dtrain::rank
