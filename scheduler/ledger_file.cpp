#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/filesystem.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

constexpr int kVersion = 1;  // of the tables
constexpr int kPatienceMs = 20'000;

// Times are nanoseconds of the wall clock. `lease` and `entered` (the time at which the task got its state, 0 if an
// earlier version wrote it) are of the monotonic clock, which cannot be set back and counts from the boot. States are
// numbered as TaskState: below 4 a task has not ended. Two columns are added below: `yield_to` is the task for which
// this one has to give up its slots (0: none), and `paused` is 1 from `dtrain task pause` to `activate`; a paused task
// without slots is queued (state 0). `agent` and `slot` of a claim are those of a SlotKey (queue.h).
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
  // After a power failure the last changes may be missing; the processes that these changes name no longer run then.
  database.execute("PRAGMA synchronous = NORMAL");
  return database;
}

}  // namespace dtrain::scheduler
