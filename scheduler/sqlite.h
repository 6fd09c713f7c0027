// SQLite's C interface as objects: a database, a statement, a transaction. Errors are SystemError with the file's name.
// A database and its statements belong to one thread, and not to a child that was forked with them.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sqlite3.h>

namespace dtrain::scheduler {

class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql);

  // Binds the parameters ?1, ?2, … in order; text is copied.
  template <typename... Values>
  Statement& bind(const Values&... values) {
    int index = 0;
    (bind_one(++index, values), ...);
    return *this;
  }
  // True: there is a row. False: the statement is done.
  bool step();
  // Runs a statement without rows.
  void run();

  std::int64_t integer(int column) const { return ::sqlite3_column_int64(handle_.get(), column); }
  std::optional<std::int64_t> maybe_integer(int column) const;
  std::string text(int column) const { return std::string(view(column)); }
  std::string_view view(int column) const;  // until the next step

 private:
  template <std::integral Integer>
  void bind_one(int index, Integer value) {
    check(::sqlite3_bind_int64(handle_.get(), index, static_cast<sqlite3_int64>(value)));
  }
  void bind_one(int index, std::string_view value);
  void check(int code) const;

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { ::sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
};

class Database {
 public:
  // Creates the file if it is missing. Waits for other writers, `patience_ms` at most.
  Database(const std::filesystem::path& file, int patience_ms);

  Statement prepare(std::string_view sql) { return {handle_.get(), sql}; }
  // Runs one or more statements without parameters, and ignores rows.
  void execute(const std::string& sql);
  // Returns the first column of the only row.
  std::int64_t value(std::string_view sql);
  std::int64_t last_row_id() const { return ::sqlite3_last_insert_rowid(handle_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* database) const { ::sqlite3_close(database); }
  };
  std::unique_ptr<sqlite3, Close> handle_;
};

// A transaction, which is undone unless it was committed. kWrite: no other connection can write until its end, so its
// reads stay true; kRead: all reads see the same state.
class Transaction {
 public:
  enum class Kind { kRead, kWrite };
  Transaction(Database& database, Kind kind);
  ~Transaction();
  Transaction& operator=(Transaction&&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace dtrain::scheduler
