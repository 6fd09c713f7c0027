#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/environment.h"

extern "C" char** environ;

namespace dtrain::rank {
namespace {

// One family of environment variables: their values as texts and numbers, with errors that name the variable.
class Family {
 public:
  Family(const Variables& variables, std::string first, std::string started_by)
      : variables_(variables), first_(std::move(first)), started_by_(std::move(started_by)) {}

  const std::string& text(const std::string& name) const {
    const std::string* value = find(variables_, name);
    if (!value || value->empty()) {
      throw ConfigError(
          "environment: " + name + " is not set, though " + first_ + " is",
          "set it, or unset " + first_ + " to run as a single rank (" + started_by_ + " normally sets both)");
    }
    return *value;
  }

  int number(const std::string& name, int low, int high) const {
    const std::string& value = text(name);
    const auto result = to_number<int>(value);
    if (!result || *result < low || *result > high) {
      throw ConfigError("environment: " + name + "=" + value + " is not a number from " + std::to_string(low) + " to " +
                        std::to_string(high));
    }
    return *result;
  }

  comm::World world(const std::string& rank, const std::string& size, const std::string& local_rank,
                    const std::string& local_size) const {
    comm::World world;
    world.size = number(size, 1, 1'000'000);
    world.rank = number(rank, 0, world.size - 1);
    world.local_size = number(local_size, 1, world.size);
    world.local_rank = number(local_rank, 0, world.local_size - 1);
    return world;
  }

 private:
  const Variables& variables_;
  std::string first_;
  std::string started_by_;
};

// True if the launcher has placed the ranks on GPUs, by DTRAIN_SLOT_TYPE.
bool reads_cuda(const Family& family) {
  const std::string& text = family.text("DTRAIN_SLOT_TYPE");
  if (text == "cuda" || text == "cpu") return text == "cuda";
  throw ConfigError("environment: DTRAIN_SLOT_TYPE=" + text + " is neither cuda nor cpu",
                    "only `dtrain launch` sets DTRAIN_SLOT_TYPE; unset it");
}

std::string slot_type_text(bool on_gpus) {
  return on_gpus ? "cuda" : "cpu";
}

constexpr const char* kNodeRank = "PET_NODE_RANK";

// Only torchrun itself sets this variable; people who set its other variables by hand do not.
constexpr const char* kRunOfTorchrun = "TORCHELASTIC_RUN_ID";

// Returns the first of `names` that is set; empty if none is.
template <std::size_t N>
std::string first_set(const Variables& variables, const std::array<const char*, N>& names) {
  for (const char* name : names) {
    if (find(variables, name)) return name;
  }
  return {};
}

RankEnvironment from_dtrain(const Variables& variables, const std::string& first) {
  const Family family(variables, first, "dtrain launch");
  RankEnvironment result{.started_by = "dtrain launch"};
  result.world = family.world("DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK", "DTRAIN_LOCAL_SIZE");
  if (find(variables, "DTRAIN_LAUNCHER_FD")) {
    const Family handed(variables, "DTRAIN_LAUNCHER_FD", "dtrain launch");
    Handover handover;
    handover.link_fd = handed.number("DTRAIN_LAUNCHER_FD", 3, 1 << 20);
    handover.launcher_pid = handed.number("DTRAIN_LAUNCHER_PID", 1, 1 << 30);
    handover.run_dir = handed.text("DTRAIN_RUN_DIR");
    handover.rendezvous = handed.text("DTRAIN_RENDEZVOUS");
    handover.agent_id = handed.text("DTRAIN_AGENT_ID");
    handover.monitor_socket = handed.text("DTRAIN_AGENT_SOCKET");
    handover.on_gpus = reads_cuda(handed);
    if (const std::string* from = find(variables, "DTRAIN_RESUME_FROM")) handover.resume_from = *from;
    if (const std::string* folder = find(variables, "DTRAIN_MEMORY_FOLDER")) handover.memory_folder = *folder;
    if (const std::string* kept = find(variables, "DTRAIN_KEPT_MEMORY")) handover.kept_memory = Json::parse(*kept);
    result.world.host = handover.agent_id;
    result.handover = std::move(handover);
  } else {
    result.started_by = "DTRAIN_RANK and DTRAIN_WORLD_SIZE";
    if (result.world.size > 1) result.job = "dtrain-" + family.text("DTRAIN_JOB");
  }
  return result;
}

RankEnvironment from_open_mpi(const Variables& variables, const std::string& first) {
  const Family family(variables, first, "mpirun");
  RankEnvironment result{.started_by = "Open MPI", .has_mpi = true};
  result.world = family.world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                              "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (result.world.size > 1) {
    constexpr std::array kJobs{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
    const std::string job = first_set(variables, kJobs);
    result.job = "ompi-" + family.text(job.empty() ? kJobs[0] : job);
  }
  return result;
}

// "2(x3),1": two tasks on each of the first three nodes, one on the fourth. If the text cannot be read, compare_hosts()
// reports the wrong count.
int tasks_of_node(const std::string& text, int node, int local_rank) {
  for (const std::string& part : split(text, ',')) {
    int tasks = 0;
    int nodes = 1;
    if (std::sscanf(part.c_str(), "%d(x%d)", &tasks, &nodes) < 1) break;
    if (node < nodes) return std::max(tasks, local_rank + 1);
    node -= nodes;
  }
  return local_rank + 1;
}

RankEnvironment from_slurm(const Variables& variables, const std::string& first) {
  const Family family(variables, first, "srun");
  RankEnvironment result{.started_by = "Slurm"};
  // The step's own variable, or the job's if this Slurm does not set the step's. An error names the step's.
  const auto of_step = [&](const char* step, const char* job) {
    return find(variables, step) || !find(variables, job) ? step : job;
  };
  const std::string size = of_step("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  const std::string nodes = of_step("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
  result.world.size = family.number(size, 1, 1'000'000);
  result.world.rank = family.number("SLURM_PROCID", 0, result.world.size - 1);
  result.world.local_rank = family.number("SLURM_LOCALID", 0, result.world.size - 1);
  result.has_mpi = find(variables, "PMIX_NAMESPACE") != nullptr;
  const bool one_node = family.number(nodes, 1, 1'000'000) == 1;
  const std::string* tasks = find(variables, "SLURM_STEP_TASKS_PER_NODE");
  // If Slurm does not set the variable, compare_hosts() reports a count that is too small.
  result.world.local_size = one_node ? result.world.size : result.world.local_rank + 1;
  if (!one_node && tasks && find(variables, "SLURM_NODEID")) {
    const int node = family.number("SLURM_NODEID", 0, 1'000'000);
    result.world.local_size = tasks_of_node(*tasks, node, result.world.local_rank);
  }
  if (result.world.size > 1) result.job = "slurm-" + family.text("SLURM_JOB_ID") + "." + family.text("SLURM_STEP_ID");
  return result;
}

// Whether torchrun's own store listens at MASTER_ADDR, and outlives the ranks.
bool torchrun_serves(const Variables& variables) {
  const std::string* const served = find(variables, "TORCHELASTIC_USE_AGENT_STORE");
  return served && *served == "True";
}

RankEnvironment from_torchrun(const Variables& variables, const std::string& first) {
  const Family family(variables, first, "torchrun");
  const std::string* const run = find(variables, kRunOfTorchrun);
  const std::string* const error_file = find(variables, "TORCHELASTIC_ERROR_FILE");
  RankEnvironment result{.started_by = run ? "torchrun" : "RANK and WORLD_SIZE"};
  if (error_file) result.error_file = *error_file;
  if (find(variables, "TORCHELASTIC_RESTART_COUNT")) {
    result.restart = family.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30);
  }
  if (run && find(variables, "TORCHELASTIC_MAX_RESTARTS")) {
    result.most_restarts = family.number("TORCHELASTIC_MAX_RESTARTS", 0, 1 << 30);
  }
  if (find(variables, "DTRAIN_KEEPER_FD")) {
    result.keeper_fd = family.number("DTRAIN_KEEPER_FD", 3, 1 << 20);
    if (find(variables, kNodeRank)) result.keeper_host = family.number(kNodeRank, 0, 1'000'000);
  }
  if (find(variables, "LOCAL_RANK") || find(variables, "LOCAL_WORLD_SIZE")) {
    result.world = family.world("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  } else {  // only one host is possible then, which compare_hosts() checks
    result.names_local_ranks = false;
    result.world = family.world("RANK", "WORLD_SIZE", "RANK", "WORLD_SIZE");
  }
  if (result.world.size > 1) {
    // torchrun's own store may listen at this address. The port identifies the job: a host has one job for each port.
    static_cast<void>(family.text("MASTER_ADDR"));
    result.job = "torch-" + (run ? *run : "none") + "-" + family.text("MASTER_PORT");
    // Where hosts may come later, their torchruns count fewer restarts; rank 0 then serves a store of its own each
    // time.
    const bool one_store = result.world.local_size == result.world.size || torchrun_serves(variables);
    if (one_store) result.job += "-" + std::to_string(result.restart);
  }
  return result;
}

// Returns the address of rank 0, if the variables name it.
std::optional<MasterAddress> read_master(const Variables& variables) {
  if (!find(variables, "MASTER_ADDR") || !find(variables, "MASTER_PORT")) return std::nullopt;
  const Family family(variables, "MASTER_ADDR", "torchrun");
  MasterAddress master{.name = family.text("MASTER_ADDR")};
  master.port = static_cast<std::uint16_t>(family.number("MASTER_PORT", 1, 65'535));
  master.is_served = torchrun_serves(variables);
  return master;
}

// Describes a process that a pod starts by itself, as its only rank.
RankEnvironment from_node(const NodeEnvironment& node) {
  if (node.may_change()) {
    throw ConfigError("environment: PET_NNODES=" + std::to_string(node.least) + ":" + std::to_string(node.nodes) +
                          ", but this program was started as one process, which does not know the number of hosts",
                      "start it with dtrain launch, dtrain run or torchrun, or give one number");
  }
  if (node.ranks_here > 1) {
    throw ConfigError("environment: PET_NPROC_PER_NODE=" + std::to_string(node.ranks_here) +
                          ", but this program was started as one process",
                      "start it with dtrain launch, dtrain run or torchrun, which start one process for each rank");
  }
  RankEnvironment result{.started_by = "PET_NNODES and PET_NODE_RANK", .job = node.job()};
  result.world = {.rank = node.rank, .size = node.nodes, .local_rank = 0, .local_size = 1};
  result.master = node.master;
  return result;
}

LauncherContact read_launcher(const Variables& variables) {
  const Family family(variables, "DTRAIN_LAUNCHER", "dtrain launch");
  const std::string& text = family.text("DTRAIN_LAUNCHER");
  const auto colon = text.rfind(':');
  LauncherContact contact{.address = text.substr(0, colon)};
  if (!find(variables, "DTRAIN_SECRET_FILE") && find(variables, "DTRAIN_SECRET")) {
    contact.secrets = launch_secrets_of(family.text("DTRAIN_SECRET"));
  } else {
    contact.secret_file = family.text("DTRAIN_SECRET_FILE");
  }
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto number = to_number<decltype(contact.port)>(port);
  if (contact.address.empty() || !number) {
    throw ConfigError("environment: DTRAIN_LAUNCHER=" + text + " is not an address and a port",
                      "only `dtrain launch` sets DTRAIN_LAUNCHER; unset it");
  }
  contact.port = *number;
  contact.on_gpus = reads_cuda(family);
  return contact;
}

// Takes `mark` and the number after it from the beginning of the text. 0: the mark is not there, or no number.
int take_marked(std::string_view& text, std::string_view mark) {
  if (!text.starts_with(mark)) return 0;
  std::string_view rest = text.substr(mark.size());
  const int number = take_number<int>(rest).value_or(0);
  if (number < 1) return 0;
  text = rest;
  return number;
}

// Reads a slot as to_text() writes it. Empty: the text is malformed.
std::optional<SlotOfRank> read_slot(std::string_view text) {
  SlotOfRank slot;
  if (text.starts_with('=')) {
    text.remove_prefix(1);
    slot.cpus = take_ranges(text, '+');
    if (slot.cpus.empty()) return std::nullopt;
  } else {
    const auto index = take_number<decltype(slot.index)>(text);
    if (!index) return std::nullopt;
    slot.index = *index;
    slot.of_cores = text.starts_with(':');
    slot.slots = take_marked(text, slot.of_cores ? ":" : "/");
    if (slot.index < 0 || slot.index >= slot.slots) return std::nullopt;
  }
  slot.cores = take_marked(text, "x");
  slot.threads = take_marked(text, "t");
  return text.empty() ? std::optional(slot) : std::nullopt;
}

// True if the path is a folder of this user and closed to everyone else; a link is not followed.
bool is_private_folder(const std::filesystem::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

// PET_*: the variables by which torchrun can be told its options. Kubeflow's TrainJob and PyTorchJob set them in each
// pod.
constexpr const char* kNodes = "PET_NNODES";
constexpr const char* kRanksPerNode = "PET_NPROC_PER_NODE";
constexpr const char* kMeeting = "PET_RDZV_CONF";

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "4"; or "2:4", the least and the largest number of hosts.
void read_nodes(const Variables& variables, NodeEnvironment& node) {
  const std::string& text = variables.at(kNodes);
  const auto number = [&](const std::string& part) {
    const auto value = to_number<int>(part);
    if (value && *value >= 1 && *value <= 100'000) return *value;
    throw ConfigError("environment: PET_NNODES=" + text + " is neither a number from 1 to 100000 nor two such numbers",
                      "give the number of hosts, or the least and the largest one: PET_NNODES=2:4");
  };
  const auto colon = text.find(':');
  node.least = number(text.substr(0, colon));
  node.nodes = colon == std::string::npos ? node.least : number(text.substr(colon + 1));
  if (node.least <= node.nodes) return;
  throw ConfigError("environment: PET_NNODES=" + text + " names the larger number of hosts first",
                    "give the least number, then the largest one: PET_NNODES=2:4");
}

// torchrun's options for the meeting, "last_call_timeout=30,join_timeout=600", of which one counts here.
std::chrono::seconds read_last_call(const Variables& variables) {
  constexpr std::string_view kLastCall = "last_call_timeout=";
  const std::string* const all = find(variables, kMeeting);
  for (const std::string& one : all ? split(*all, ',') : std::vector<std::string>()) {
    if (!one.starts_with(kLastCall)) continue;
    const auto seconds = to_number<int>(std::string_view(one).substr(kLastCall.size()));
    if (seconds && *seconds >= 0) return std::chrono::seconds(*seconds);
    throw ConfigError("environment: PET_RDZV_CONF: " + one + " is no number of seconds",
                      "it says how long the least number of hosts waits for more");
  }
  return NodeEnvironment().last_call;
}

}  // namespace

Variables process_variables() {
  Variables result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

void set_process_variables(const std::vector<std::pair<std::string, std::string>>& variables) {
  for (const auto& [name, value] : variables) {
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) throw SystemError("cannot set the variable " + name, errno);
  }
}

void unset_process_variable(const std::string& name) {
  if (::unsetenv(name.c_str()) != 0) throw SystemError("cannot unset the variable " + name, errno);
}

LaunchSecrets launch_secrets_of(const std::string& text) {
  const auto dot = text.find('.');
  LaunchSecrets secrets{.launch = text.substr(0, dot), .ranks = dot == std::string::npos ? "" : text.substr(dot + 1)};
  if (secrets.launch.empty() || secrets.ranks.empty()) {
    throw ConfigError("the secret from the launcher is incomplete", "start the run again");
  }
  return secrets;
}

RankEnvironment read_rank_environment(const Variables& variables) {
  RankEnvironment result;
  constexpr std::array kOwn{"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK", "DTRAIN_LOCAL_SIZE",
                            "DTRAIN_LAUNCHER_FD"};
  constexpr std::array kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE"};
  // SLURM_PROCID is left out: sbatch's script has it too, but is no step.
  constexpr std::array kSlurm{"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"};
  constexpr std::array kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  // srun or mpirun may have started torchrun once on each host, so torchrun's own variables win over theirs.
  const bool is_torchrun = find(variables, kRunOfTorchrun) && !first_set(variables, kTorchrun).empty();
  if (const std::string first = first_set(variables, kOwn); !first.empty()) {
    result = from_dtrain(variables, first);
  } else if (const std::string first = first_set(variables, kOpenMpi); !first.empty() && !is_torchrun) {
    result = from_open_mpi(variables, first);
  } else if (const std::string first = first_set(variables, kSlurm); !first.empty() && !is_torchrun) {
    result = from_slurm(variables, first);
  } else if (const std::string first = first_set(variables, kTorchrun); !first.empty()) {
    result = from_torchrun(variables, first);
  } else if (const auto node = read_node_environment(variables); node && node->nodes > 1) {
    result = from_node(*node);
  } else {
    result.started_by = "nothing";
  }
  if (!result.master) result.master = read_master(variables);
  if (!result.handover && find(variables, "DTRAIN_LAUNCHER")) result.launcher = read_launcher(variables);
  if (const std::string* file = find(variables, "DTRAIN_RUN_SECRET_FILE")) result.run_secret_file = *file;
  if (const std::string* interface = find(variables, "DTRAIN_NETWORK_INTERFACE")) result.network_interface = *interface;
  return result;
}

Variables rank_variables(const comm::World& world, const Handover& handover) {
  Variables result{{"DTRAIN_RANK", std::to_string(world.rank)},
                   {"DTRAIN_WORLD_SIZE", std::to_string(world.size)},
                   {"DTRAIN_LOCAL_RANK", std::to_string(world.local_rank)},
                   {"DTRAIN_LOCAL_SIZE", std::to_string(world.local_size)},
                   {"DTRAIN_LAUNCHER_FD", std::to_string(handover.link_fd)},
                   {"DTRAIN_LAUNCHER_PID", std::to_string(handover.launcher_pid)},
                   {"DTRAIN_RUN_DIR", handover.run_dir.string()},
                   {"DTRAIN_RENDEZVOUS", handover.rendezvous.string()},
                   {"DTRAIN_AGENT_ID", handover.agent_id},
                   {"DTRAIN_AGENT_SOCKET", handover.monitor_socket},
                   {"DTRAIN_SLOT_TYPE", slot_type_text(handover.on_gpus)},
                   {"DTRAIN_RESUME_FROM", handover.resume_from.string()},
                   {"DTRAIN_MEMORY_FOLDER", handover.memory_folder.string()}};
  if (!handover.kept_memory.empty()) result["DTRAIN_KEPT_MEMORY"] = to_line(handover.kept_memory);
  return result;
}

Variables launcher_variables(const LauncherContact& launcher) {
  Variables result{{"DTRAIN_LAUNCHER", launcher.address + ":" + std::to_string(launcher.port)},
                   {"DTRAIN_SLOT_TYPE", slot_type_text(launcher.on_gpus)}};
  if (launcher.secret_file.empty()) {
    result["DTRAIN_SECRET"] = launcher.secrets.launch + "." + launcher.secrets.ranks;
  } else {
    result["DTRAIN_SECRET_FILE"] = launcher.secret_file.string();
  }
  return result;
}

std::string to_text(const SlotOfRank& slot) {
  std::string text = std::to_string(slot.index) + (slot.of_cores ? ":" : "/") + std::to_string(slot.slots);
  if (!slot.cpus.empty()) text = "=" + ranges_text(slot.cpus, "+");
  if (slot.cores > 0) text += "x" + std::to_string(slot.cores);
  if (slot.threads > 0) text += "t" + std::to_string(slot.threads);
  return text;
}

std::optional<SlotOfRank> slot_of_rank(const Variables& variables, int rank) {
  const std::string* value = find(variables, "DTRAIN_SLOTS");
  if (!value) return std::nullopt;
  const std::vector<std::string> slots = split(*value, ',');
  if (static_cast<std::size_t>(rank) < slots.size()) {
    if (auto slot = read_slot(slots[static_cast<std::size_t>(rank)])) return slot;
  }
  throw ConfigError("environment: DTRAIN_SLOTS=" + *value + " has no slot for rank " + std::to_string(rank),
                    "only `dtrain launch` sets DTRAIN_SLOTS; unset it");
}

namespace {

constexpr const char* kTemporary = "/tmp";
constexpr auto kLockPatience = std::chrono::seconds(2);  // others may lock /tmp, too

// Returns the first by name of the private folders /tmp/dtrain-UID-…; empty: there is none.
std::filesystem::path find_substitute(const std::string& prefix) {
  std::filesystem::path found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(kTemporary, code)) {
    const std::filesystem::path& path = entry.path();
    const bool is_first = found.empty() || path < found;
    if (is_first && path.string().starts_with(prefix) && is_private_folder(path)) found = path;
  }
  return found;
}

// Makes a folder whose name nobody can foresee, for a user whose folder another user keeps from being made. All
// processes of the user find it: only one of them at a time looks and makes it.
std::filesystem::path make_substitute(const std::string& prefix) {
  const UniqueFd lock(::open(kTemporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (auto found = find_substitute(prefix); !found.empty()) return found;
  std::string name = prefix + "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    throw SystemError("cannot make a folder " + name, errno, "set XDG_RUNTIME_DIR to a folder of yours of mode 0700");
  }
  return name;
}

}  // namespace

std::filesystem::path private_folder(const Variables& variables) {
  if (const std::string* runtime = find(variables, "XDG_RUNTIME_DIR"); runtime && is_private_folder(*runtime)) {
    std::filesystem::path folder = std::filesystem::path(*runtime) / "dtrain";
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      throw SystemError("cannot make the folder " + folder.string(), errno);
    }
    if (is_private_folder(folder)) return folder;
    throw SystemError("the folder " + folder.string() + " cannot be trusted", EPERM,
                      "it must be a folder of this user that nobody else may enter (mode 0700); remove it");
  }
  const std::string folder = std::string(kTemporary) + "/dtrain-" + std::to_string(::geteuid());
  if (is_private_folder(folder)) return folder;
  if (auto found = find_substitute(folder + "-"); !found.empty()) return found;
  if (::mkdir(folder.c_str(), 0700) == 0 || is_private_folder(folder)) return folder;
  return make_substitute(folder + "-");
}

std::filesystem::path cache_folder(const Variables& variables) {
  const std::string* cache = find(variables, "XDG_CACHE_HOME");
  if (cache && cache->starts_with('/')) return std::filesystem::path(*cache) / "dtrain";
  const std::string* home = find(variables, "HOME");
  if (home && home->starts_with('/')) return std::filesystem::path(*home) / ".cache" / "dtrain";
  return {};
}

std::filesystem::path state_folder(const Variables& variables) {
  if (const std::string* own = find(variables, "DTRAIN_STATE_DIR"); own && !own->empty()) {
    if (own->starts_with('/')) return *own;
    throw ConfigError("environment: DTRAIN_STATE_DIR=" + *own + " is not an absolute path",
                      "every launch and `dtrain task` must mean the same folder, wherever it is started");
  }
  const std::string* state = find(variables, "XDG_STATE_HOME");
  if (state && state->starts_with('/')) return std::filesystem::path(*state) / "dtrain";
  const std::string* home = find(variables, "HOME");
  if (home && home->starts_with('/')) return std::filesystem::path(*home) / ".local" / "state" / "dtrain";
  return private_folder(variables);
}

std::filesystem::path find_program(const std::string& name, const std::filesystem::path& beside,
                                   const Variables& variables) {
  std::filesystem::path candidate = beside / name;
  if (is_program(candidate)) return candidate;
  return find_in_path(name, find(variables, "PATH"));
}

std::optional<NodeEnvironment> read_node_environment(const Variables& variables) {
  if (!find(variables, kNodes)) return std::nullopt;
  const Family family(variables, kNodes, "a TrainJob");
  NodeEnvironment node;
  read_nodes(variables, node);
  node.last_call = read_last_call(variables);
  const std::string* const per_node = find(variables, kRanksPerNode);
  if (per_node && is_number(*per_node)) node.ranks_here = family.number(kRanksPerNode, 1, 100'000);
  if (node.nodes == 1) return node;
  node.rank = family.number(kNodeRank, 0, node.nodes - 1);
  node.master.name = family.text("PET_MASTER_ADDR");
  node.master.port = static_cast<std::uint16_t>(family.number("PET_MASTER_PORT", 1, 65'535));
  return node;
}

}  // namespace dtrain::rank
