// Writes the tables as a SQLite database and as CSV files.
#include <sqlite3.h>

#include <cmath>
#include <memory>
#include <system_error>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/export.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain::analysis {
namespace {

struct CloseDatabase {
  void operator()(sqlite3* database) const { ::sqlite3_close(database); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { ::sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

void check(bool good, sqlite3* database, const std::filesystem::path& file) {
  if (!good) throw SystemError("cannot write " + file.string() + ": " + ::sqlite3_errmsg(database), EIO);
}

void bind(sqlite3_stmt* statement, int index, const Cell& cell) {
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) {
    ::sqlite3_bind_int64(statement, index, *integer);
  } else if (const auto* real = std::get_if<double>(&cell)) {
    ::sqlite3_bind_double(statement, index, *real);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    ::sqlite3_bind_text(statement, index, text->data(), static_cast<int>(text->size()), SQLITE_TRANSIENT);
  } else {
    ::sqlite3_bind_null(statement, index);
  }
}

std::int64_t fill(const Table& table, const RunProfile& profile, sqlite3* database, const std::filesystem::path& file) {
  std::vector<std::string> columns, places;
  for (const Column& column : table.columns) {
    columns.push_back(column.name + " " + std::string(column.type));
    places.emplace_back("?");
  }
  const std::string create = "CREATE TABLE " + table.name + " (" + join(columns, ", ") + ")";
  check(::sqlite3_exec(database, create.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK, database, file);
  const std::string insert = "INSERT INTO " + table.name + " VALUES (" + join(places, ", ") + ")";
  sqlite3_stmt* made = nullptr;
  check(::sqlite3_prepare_v2(database, insert.c_str(), -1, &made, nullptr) == SQLITE_OK, database, file);
  const std::unique_ptr<sqlite3_stmt, Finalize> statement(made);
  std::int64_t rows = 0;
  table.rows(profile, [&](const std::vector<Cell>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) bind(made, static_cast<int>(i) + 1, row[i]);
    check(::sqlite3_step(made) == SQLITE_DONE, database, file);
    ::sqlite3_reset(made);
    ++rows;
  });
  return rows;
}

void append_csv(fmt::memory_buffer& out, const Cell& cell) {
  const auto to = std::back_inserter(out);
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) {
    fmt::format_to(to, "{}", *integer);
  } else if (const auto* real = std::get_if<double>(&cell)) {
    if (std::isfinite(*real)) fmt::format_to(to, "{}", *real);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    if (text->find_first_of(",\"\r\n") == std::string::npos) {
      fmt::format_to(to, "{}", *text);
      return;
    }
    out.push_back('"');
    for (const char c : *text) {
      if (c == '"') out.push_back('"');
      out.push_back(c);
    }
    out.push_back('"');
  }
}

// Appends to a new file, which is renamed when it is complete.
class CsvFile {
 public:
  explicit CsvFile(const std::filesystem::path& path) : path_(path), part_(path.string() + ".part") {
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
    file_ = std::make_unique<LineAppender>(part_);
  }
  template <typename Cells>
  void line(const Cells& cells) {
    bool first = true;
    for (const auto& cell : cells) {
      if (!std::exchange(first, false)) buffer_.push_back(',');
      append_csv(buffer_, cell);
    }
    buffer_.push_back('\n');
    if (buffer_.size() > kPieceBytes) flush();
  }
  void finish() {
    flush();
    file_.reset();
    std::filesystem::rename(part_, path_);
  }

 private:
  static constexpr std::size_t kPieceBytes = 1 << 20;
  void flush() {
    if (buffer_.size() > 0) file_->append({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }
  std::filesystem::path path_, part_;
  std::unique_ptr<LineAppender> file_;
  fmt::memory_buffer buffer_;
};

}  // namespace

Exported export_sqlite(const RunProfile& profile, const std::filesystem::path& file) {
  const std::filesystem::path part = file.string() + ".part";
  if (file.has_parent_path()) make_folder(file.parent_path());
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  Exported result;
  {
    sqlite3* opened = nullptr;
    const int code = ::sqlite3_open(part.c_str(), &opened);
    const Database database(opened);
    check(code == SQLITE_OK, opened, part);
    // No other process sees the file before it is complete, so no journal is needed.
    const auto execute = [&](const char* sql) {
      check(::sqlite3_exec(opened, sql, nullptr, nullptr, nullptr) == SQLITE_OK, opened, part);
    };
    execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN");
    for (const Table& table : run_tables()) result.rows += fill(table, profile, opened, part);
    execute("CREATE INDEX steps_by_batch ON steps (batch, rank)");
    execute("CREATE INDEX collectives_by_batch ON collectives (batch, sequence)");
    execute("COMMIT");
  }
  std::filesystem::rename(part, file);
  result.files.push_back(file);
  return result;
}

Exported export_csv(const RunProfile& profile, const std::filesystem::path& folder) {
  make_folder(folder);
  Exported result;
  for (const Table& table : run_tables()) {
    const auto path = folder / (table.name + ".csv");
    CsvFile file(path);
    std::vector<Cell> names;
    for (const Column& column : table.columns) names.emplace_back(column.name);
    file.line(names);
    table.rows(profile, [&](const std::vector<Cell>& row) {
      file.line(row);
      ++result.rows;
    });
    file.finish();
    result.files.push_back(path);
  }
  return result;
}

}  // namespace dtrain::analysis
