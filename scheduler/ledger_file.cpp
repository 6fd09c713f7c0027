#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/file.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/host/filesystem.h"
#include "dtrain/scheduler/ledger.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

constexpr int kVersion = 1;  // of the tables
constexpr int kPatienceMs = 20'000;

// Times are nanoseconds of the wall clock. `lease` and `entered` (the time at which the task got its state, 0 if an
// earlier version wrote it) are of the monotonic clock, which cannot be set back and counts from the boot. States are
// numbered as TaskState: below 4 a task has not ended. Columns are added below: `yield_to` is the task for which this
// one has to give up its slots (0: none); `paused` is 1 from `dtrain task pause` to `activate`; a paused task without
// slots is queued (state 0); `resize_to` is the number of slots with which a task has to go on (0: no other),
// `resize_why` the cause of this order, and `resize_refused` the owner's cause for refusing the last one; `elastic_min`
// and `elastic_max` are the numbers of slots that an elastic task may have now (0: it is not elastic), and `keeps` is
// the claim that it keeps while it carries out an order. Its claim is not empty then, though it is queued. `agent` and
// `slot` of a claim are those of a SlotKey (queue.h).
constexpr const char* kTables = R"sql(
  CREATE TABLE tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL,
    priority INTEGER NOT NULL, slots INTEGER NOT NULL, claim TEXT NOT NULL, run_dir TEXT NOT NULL,
    boot TEXT NOT NULL, namespace TEXT NOT NULL, pid INTEGER NOT NULL, ticks INTEGER NOT NULL,
    lease INTEGER NOT NULL, kills INTEGER NOT NULL DEFAULT 0, placed_by_others INTEGER NOT NULL,
    submitted INTEGER NOT NULL, started INTEGER, ended INTEGER, exit_code INTEGER, request TEXT,
    entered INTEGER NOT NULL DEFAULT 0);
  CREATE INDEX tasks_not_ended ON tasks (state) WHERE state < 4;
  CREATE TABLE claims (
    agent TEXT NOT NULL, slot INTEGER NOT NULL, task INTEGER NOT NULL REFERENCES tasks, PRIMARY KEY (agent, slot))
    WITHOUT ROWID;
  CREATE TABLE processes (
    task INTEGER NOT NULL REFERENCES tasks, name TEXT NOT NULL,
    boot TEXT NOT NULL, namespace TEXT NOT NULL, pid INTEGER NOT NULL, ticks INTEGER NOT NULL);
  CREATE INDEX processes_of_task ON processes (task);
  CREATE TABLE changes (task INTEGER NOT NULL REFERENCES tasks, state INTEGER NOT NULL, time INTEGER NOT NULL,
    reason TEXT NOT NULL);
  CREATE INDEX changes_of_task ON changes (task);
  CREATE TABLE generation (value INTEGER NOT NULL);
  INSERT INTO generation VALUES (0);
)sql";

// Reads "0+1+5".
std::vector<int> cores_of(std::string_view text) {
  std::vector<int> cores;
  while (!text.empty()) {
    std::string_view core = text.substr(0, text.find('+'));
    text.remove_prefix(std::min(text.size(), core.size() + 1));
    cores.push_back(take_number<int>(core).value_or(0));
  }
  return cores;
}

Json to_json(std::span<const CoreUnit> cores) {
  Json json = Json::array();
  for (const CoreUnit& core : cores) json.push_back({core.number, core.node, core.package, core.kind});
  return json;
}

Json to_json(const Elastic& elastic) {
  return {elastic.min, elastic.wanted, elastic.max, elastic.grow_after.count()};
}

Elastic elastic_of(const Json& json) {
  const Elastic elastic{json.at(0), json.at(1), json.at(2), Nanoseconds(json.at(3).get<std::int64_t>())};
  if (elastic.min < 1 || elastic.wanted < elastic.min || elastic.max < elastic.wanted) {
    throw DataError("the ledger is damaged: the numbers of slots of an elastic task contradict each other");
  }
  return elastic;
}

std::vector<CoreUnit> units_of(const Json& json) {
  std::vector<CoreUnit> cores;
  for (const Json& core : json) cores.push_back({core.at(0), core.at(1), core.at(2), core.at(3)});
  return cores;
}

// The ledger has the commands and folders of all tasks. SQLite gives the files beside it the same mode. The file is
// never opened here if it is there: closing it would drop the locks that this process holds through SQLite.
void close_to_others(const std::filesystem::path& database) {
  const UniqueFd made(::open(database.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (made) return;
  for (const char* ending : {"", "-wal", "-shm"}) {
    const std::string file = database.string() + ending;
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0) ::chmod(file.c_str(), info.st_mode & 0700);
  }
}

}  // namespace

Database open_ledger_file(const std::filesystem::path& folder) {
  make_folder(folder);
  if (const auto kind = host::network_filesystem(folder)) {
    throw ConfigError(
        "the ledger of tasks cannot be kept in " + folder.string() + ": it lies on a network file system (" + *kind +
            "), where its locks do not hold",
        "set DTRAIN_STATE_DIR to a folder of your own on a local disk of this machine, under /var/tmp for example");
  }
  // One process at a time makes the tables, and decides on the journal.
  const auto lock_path = folder / "ledger.lock";
  const UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw SystemError("cannot lock " + lock_path.string(), errno, "set DTRAIN_STATE_DIR to a folder you may write to");
  }
  close_to_others(folder / "ledger.db");
  Database database(folder / "ledger.db", kPatienceMs);
  const std::int64_t version = database.value("PRAGMA user_version");
  if (version != 0 && version != kVersion) {
    throw ConfigError((folder / "ledger.db").string() +
                          " was written by another version of dtrain (its tables have version " +
                          std::to_string(version) + ", this one's " + std::to_string(kVersion) + ")",
                      "use that version, or once no launch is running move the file away: a new one is made");
  }
  // With WAL readers and the writer do not wait for each other, and a killed process leaves no partial change.
  if (version == 0) {
    database.execute("PRAGMA journal_mode = WAL");
    Transaction transaction(database, Transaction::Kind::kWrite);
    database.execute(kTables);
    database.execute("PRAGMA user_version = " + std::to_string(kVersion));
    transaction.commit();
  }
  // Other versions can read and write a table that has these columns.
  if (database.value("SELECT count(*) FROM pragma_table_info('tasks') WHERE name = 'entered'") == 0) {
    database.execute("ALTER TABLE tasks ADD COLUMN entered INTEGER NOT NULL DEFAULT 0");
  }
  if (database.value("SELECT count(*) FROM pragma_table_info('tasks') WHERE name = 'yield_to'") == 0) {
    database.execute("ALTER TABLE tasks ADD COLUMN yield_to INTEGER NOT NULL DEFAULT 0");
    database.execute("ALTER TABLE tasks ADD COLUMN paused INTEGER NOT NULL DEFAULT 0");
  }
  if (database.value("SELECT count(*) FROM pragma_table_info('tasks') WHERE name = 'resize_to'") == 0) {
    database.execute("ALTER TABLE tasks ADD COLUMN resize_to INTEGER NOT NULL DEFAULT 0");
    database.execute("ALTER TABLE tasks ADD COLUMN resize_why TEXT NOT NULL DEFAULT ''");
    database.execute("ALTER TABLE tasks ADD COLUMN resize_refused TEXT NOT NULL DEFAULT ''");
  }
  if (database.value("SELECT count(*) FROM pragma_table_info('tasks') WHERE name = 'keeps'") == 0) {
    database.execute("ALTER TABLE tasks ADD COLUMN elastic_min INTEGER NOT NULL DEFAULT 0");
    database.execute("ALTER TABLE tasks ADD COLUMN elastic_max INTEGER NOT NULL DEFAULT 0");
    database.execute("ALTER TABLE tasks ADD COLUMN keeps TEXT NOT NULL DEFAULT ''");
  }
  // After a power failure the last changes may be missing; the processes that these changes name no longer run then.
  database.execute("PRAGMA synchronous = NORMAL");
  return database;
}

// Converts claims, requests and states of tasks to text and back.

std::string to_text(const Claim& claim) {
  std::vector<std::string> shares;
  for (const ClaimedShare& share : claim) {
    std::vector<std::string> slots;
    for (std::size_t i = 0; i < share.slots.size(); ++i) {
      slots.push_back(std::to_string(share.slots[i]) + (share.gpus.empty() ? "" : "=" + share.gpus[i]));
      for (std::size_t core = 0; i < share.cores.size() && core < share.cores[i].size(); ++core) {
        slots.back() += (core == 0 ? '@' : '+') + std::to_string(share.cores[i][core]);
      }
    }
    shares.push_back(share.agent + ":" + join(slots, ","));
  }
  return join(shares, ";");
}

// Reads "node-1:0,1;node-2:0=GPU-…,3=GPU-…;node-3:0@0+1,1@2+3".
Claim claim_of(std::string_view text) {
  Claim claim;
  while (!text.empty()) {
    std::string_view share = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), share.size() + 1));
    const auto colon = share.rfind(':');
    ClaimedShare& claimed = claim.emplace_back(ClaimedShare{.agent = std::string(share.substr(0, colon))});
    share.remove_prefix(colon + 1);
    claimed.slots.reserve(static_cast<std::size_t>(std::count(share.begin(), share.end(), ',') + 1));
    while (!share.empty()) {
      const std::string_view item = share.substr(0, share.find(','));
      std::string_view slot = item;
      claimed.slots.push_back(take_number<int>(slot).value_or(0));
      if (const auto equals = item.find('='); equals != std::string_view::npos) {
        claimed.gpus.emplace_back(item.substr(equals + 1));
      } else if (const auto at = item.find('@'); at != std::string_view::npos) {
        claimed.cores.push_back(cores_of(item.substr(at + 1)));
      }
      share.remove_prefix(std::min(share.size(), item.size() + 1));
    }
    // All slots of a share have these or none has; a damaged text may differ.
    if (!claimed.gpus.empty()) claimed.gpus.resize(claimed.slots.size());
    if (!claimed.cores.empty()) claimed.cores.resize(claimed.slots.size());
  }
  return claim;
}

std::string to_text(const TaskRequest& request) {
  Json agents = Json::array();
  for (const AgentSlots& agent : request.agents) {
    agents.push_back({agent.id, agent.slots, agent.resource_pool, static_cast<int>(agent.slot_type)});
    if (!agent.gpus.empty() || !agent.cores.empty()) agents.back().push_back(agent.gpus);
    if (!agent.cores.empty()) agents.back().push_back(to_json(agent.cores));
  }
  const SlotRequest& slots = request.slots;
  return to_line({{"slots", slots.slots},
                  {"cores_per_slot", slots.cores_per_slot},
                  {"is_single_node", slots.is_single_node},
                  {"resource_pool", slots.resource_pool},
                  {"slot_type", static_cast<int>(slots.slot_type)},
                  {"policy", static_cast<int>(slots.policy)},
                  {"allow_heterogeneous_fits", slots.allow_heterogeneous_fits},
                  {"max_slots", or_null(request.max_slots)},
                  {"elastic", request.elastic ? to_json(*request.elastic) : Json()},
                  {"can_yield", request.can_yield},
                  {"preemption", request.preemption},
                  {"agents", agents}});
}

namespace {

TaskRequest parse_request(const std::string& text) {
  const Json json = parse_untrusted(text);
  TaskRequest request;
  request.slots = {.slots = json.at("slots"),
                   .cores_per_slot = json.value("cores_per_slot", 0),  // other versions write none
                   .is_single_node = json.at("is_single_node"),
                   .resource_pool = json.at("resource_pool"),
                   .slot_type = static_cast<config::AgentSlotType>(json.at("slot_type").get<int>()),
                   .policy = static_cast<config::FittingPolicy>(json.at("policy").get<int>()),
                   .allow_heterogeneous_fits = json.at("allow_heterogeneous_fits")};
  request.can_yield = json.value("can_yield", false);  // other versions write neither
  request.preemption = json.value("preemption", false);
  if (json.contains("elastic") && !json.at("elastic").is_null()) request.elastic = elastic_of(json.at("elastic"));
  if (!json.at("max_slots").is_null()) request.max_slots = json.at("max_slots").get<int>();
  for (const Json& agent : json.at("agents")) {
    const int slots = agent.at(1);
    request.agents.push_back(
        {.id = agent.at(0),
         .slots = slots,
         .free = slots,
         .resource_pool = agent.at(2),
         .slot_type = static_cast<config::AgentSlotType>(agent.at(3).get<int>()),
         .gpus = agent.size() > 4 ? agent.at(4).get<std::vector<std::string>>() : std::vector<std::string>(),
         .cores = agent.size() > 5 ? units_of(agent.at(5)) : std::vector<CoreUnit>()});
  }
  return request;
}

}  // namespace

TaskRequest request_of(const std::string& text) {
  try {
    return parse_request(text);
  } catch (const JsonError& error) {
    throw DataError(std::string("the ledger is damaged: the request of a task is ") + error.what());
  } catch (const Json::exception&) {
    throw DataError("the ledger is damaged: the request of a task has a member that is missing or of another type");
  }
}

// End states have the same names as the ends of runs in their events.
std::string to_string(TaskState state) {
  constexpr std::array kNames{"queued", "starting", "running", "stopping", "done", "failed", "interrupted", "paused"};
  return kNames.at(static_cast<std::size_t>(state));
}

bool has_ended(TaskState state) {
  return state >= TaskState::kDone && state != TaskState::kPaused;
}

}  // namespace dtrain::scheduler
