#include "sqlite.h"

#include <cerrno>

#include <sys/resource.h>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"

namespace dtrain::scheduler {
namespace {

[[noreturn]] void fail(sqlite3* database, int code) {
  const char* name = database ? ::sqlite3_db_filename(database, "main") : nullptr;
  const int system = database ? ::sqlite3_system_errno(database) : 0;
  const std::string text = database ? ::sqlite3_errmsg(database) : ::sqlite3_errstr(code);
  const int primary = code & 0xff;
  std::string remedy;
  if (primary == SQLITE_BUSY) {
    remedy =
        "another process has been writing to it for a long time: check whether a dtrain process is stopped (SIGSTOP)";
  }
  rlimit size{};
  const bool has_size_limit = ::getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY;
  if ((primary == SQLITE_IOERR || primary == SQLITE_FULL) && has_size_limit) remedy = limit_of_file_size();
  if (primary == SQLITE_NOMEM) remedy = limit_of_memory();
  if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB) {
    remedy = "once no launch is running, move the file away: a new one is made";
  }
  throw SystemError(std::string(name ? name : "the ledger") + ": " + text, system != 0 ? system : EIO, remedy);
}

}  // namespace

Statement::Statement(sqlite3* database, std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = ::sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  handle_.reset(statement);
  if (code != SQLITE_OK) fail(database, code);
}

void Statement::check(int code) const {
  if (code != SQLITE_OK) fail(::sqlite3_db_handle(handle_.get()), code);
}

void Statement::bind_one(int index, std::string_view value) {
  check(::sqlite3_bind_text(handle_.get(), index, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT));
}

bool Statement::step() {
  const int code = ::sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) fail(::sqlite3_db_handle(handle_.get()), code);
  return false;
}

void Statement::run() {
  while (step()) {
  }
}

std::optional<std::int64_t> Statement::maybe_integer(int column) const {
  if (::sqlite3_column_type(handle_.get(), column) == SQLITE_NULL) return std::nullopt;
  return integer(column);
}

std::string_view Statement::view(int column) const {
  const auto* data = reinterpret_cast<const char*>(::sqlite3_column_text(handle_.get(), column));
  return data ? std::string_view(data, static_cast<std::size_t>(::sqlite3_column_bytes(handle_.get(), column))) : "";
}

Database::Database(const std::filesystem::path& file, int patience_ms) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = ::sqlite3_open_v2(file.c_str(), &database, flags, nullptr);
  handle_.reset(database);
  if (code != SQLITE_OK) fail(database, code);
  ::sqlite3_extended_result_codes(database, 1);
  ::sqlite3_busy_timeout(database, patience_ms);
  // Closing the last connection does not wait for the disk: changes in the journal stay there for a later checkpoint.
  ::sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

void Database::execute(const std::string& sql) {
  const int code = ::sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(handle_.get(), code);
}

std::int64_t Database::value(std::string_view sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.integer(0) : 0;
}

Transaction::Transaction(Database& database, Kind kind) : database_(database) {
  database_.execute(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const Error&) {
    // SQLite has undone the transaction by itself, or will do so when the file is opened next.
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

}  // namespace dtrain::scheduler
