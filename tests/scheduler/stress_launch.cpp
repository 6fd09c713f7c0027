#include <cerrno>
#include <cstdlib>
#include <random>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "stress.h"

namespace dtrain::scheduler::stress {
namespace {

// The cluster of request_of_launcher(), all of it on this machine.
std::filesystem::path cluster_file(const Arena& arena, const TaskRequest& request) {
  Json agents = Json::array();
  for (const AgentSlots& agent : request.agents) {
    agents.push_back({{"id", agent.id}, {"host", "localhost"}, {"slots", agent.slots}, {"slot_type", "cpu"}});
  }
  const bool heterogeneous = request.slots.allow_heterogeneous_fits;
  auto file = arena.folder / (heterogeneous ? "any.yaml" : "even.yaml");
  write_file_atomic(file, to_line({{"agents", agents}, {"scheduler", {{"allow_heterogeneous_fits", heterogeneous}}}}));
  return file;
}

std::filesystem::path experiment_file(const Arena& arena, unsigned seed, const TaskRequest& request) {
  std::mt19937 random(seed + 1);
  // Some go on for seconds.
  const int longest = std::uniform_int_distribution<int>(1, 4)(random) == 1 ? 100 : 10;
  Json resources = {{"slots_per_trial", request.slots.slots},
                    {"priority", request.priority},
                    {"is_single_node", request.slots.is_single_node}};
  if (request.max_slots) resources["max_slots"] = *request.max_slots;
  const auto rank_program = executable_path().parent_path().parent_path() / "tests" / "rank_program";
  const Json experiment = {
      {"name", request.name},
      {"entrypoint", {executable_path(), "--rank-of-launch", arena.folder, rank_program}},
      {"resources", resources},
      {"hyperparameters", {{"global_batch_size", 72}, {"step_ms", 20}}},
      {"searcher",
       {{"metric", "loss"}, {"max_length", {{"batches", std::uniform_int_distribution<int>(1, longest)(random)}}}}},
      {"communication", {{"timeout", 60}}}};
  auto file = arena.folder / (std::to_string(seed) + ".yaml");
  write_file_atomic(file, to_line(experiment));
  return file;
}

}  // namespace

ProcessOptions launch_of(const Arena& arena, unsigned seed) {
  const TaskRequest request = request_of_launcher(seed);
  ProcessOptions launch;
  launch.command = {executable_path().parent_path() / "dtrain",
                    "launch",
                    experiment_file(arena, seed, request),
                    "--cluster",
                    cluster_file(arena, request),
                    "--run-dir",
                    arena.run(seed)};
  launch.environment = {
      {"DTRAIN_STATE_DIR", arena.state()}, {"XDG_RUNTIME_DIR", arena.folder}, {"DTRAIN_CALIBRATION", "false"}};
  return launch;
}

int run_rank_of_launch(const Arena& arena, char** program) {
  const char* folder = std::getenv("DTRAIN_RUN_DIR");
  const char* rank = std::getenv("DTRAIN_RANK");
  if (!folder || !rank) throw Error("this is no rank of a launch");
  const Json slot = read_json(std::filesystem::path(folder) / "plan.json").at("ranks").at(std::stoul(rank));
  hold_slot(arena, slot.at("agent"), slot.at("slot"));
  ::execv(program[0], program);
  throw SystemError(std::string("cannot start ") + program[0], errno);
}

}  // namespace dtrain::scheduler::stress
