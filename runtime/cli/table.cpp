#include "table.h"

#include <algorithm>
#include <cstdint>

#include "dtrain/base/units.h"

namespace dtrain::cli {
namespace {

std::string plain(const Json& value, const std::string& separator) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  if (!value.is_array()) return to_line(value);
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : separator) + plain(item, separator);
  return text;
}

// One line, whatever it holds.
std::string for_people(const Json& value, Table::Unit unit) {
  std::string text =
      unit == Table::Unit::kBytes && value.is_number() ? format_bytes(value.get<double>()) : plain(value, ",");
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

// Bytes that go on with a character of UTF-8 take no place of their own.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char letter : text) result += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return result + "\"";
}

}  // namespace

std::shared_ptr<ListFormat> add_list_format(CLI::App& command) {
  auto format = std::make_shared<ListFormat>(ListFormat::kText);
  CLI::Option* csv = command.add_flag_callback(
      "--csv", [format] { *format = ListFormat::kCsv; }, "As CSV, with a header");
  CLI::Option* json = command.add_flag_callback(
      "--json", [format] { *format = ListFormat::kJson; }, "As JSON: a list of objects");
  csv->excludes(json);
  return format;
}

std::string Table::render(ListFormat format) const {
  if (format == ListFormat::kCsv) return csv();
  return format == ListFormat::kJson ? json() : text();
}

std::string Table::text() const {
  const auto is_empty = [this](std::size_t column) {
    return !rows_.empty() &&
           std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return row[column].is_null(); });
  };
  // One list of all cells, row after row: lists may be long.
  const std::size_t width = columns_.size();
  std::vector<std::string> cells;
  cells.reserve((rows_.size() + 1) * width);
  for (const Column& column : columns_) cells.push_back(column.title.empty() ? column.name : column.title);
  for (const std::vector<Json>& row : rows_) {
    for (std::size_t i = 0; i < width; ++i) cells.push_back(for_people(row[i], columns_[i].unit));
  }
  std::vector<bool> empty;
  for (std::size_t i = 0; i < width; ++i) empty.push_back(is_empty(i));
  std::vector<std::size_t> widths(width, 0);
  for (std::size_t i = 0; i < cells.size(); ++i) widths[i % width] = std::max(widths[i % width], width_of(cells[i]));
  std::string text;
  for (std::size_t row = 0; row <= rows_.size(); ++row) {
    const std::size_t begin = text.size();
    for (std::size_t i = 0; i < width; ++i) {
      if (empty[i]) continue;
      const std::string& cell = cells[row * width + i];
      const std::size_t fill = widths[i] - width_of(cell);
      const bool right = row > 0 && rows_[row - 1][i].is_number();
      if (text.size() > begin) text += "  ";
      if (right) text.append(fill, ' ');
      text += cell;
      if (!right) text.append(fill, ' ');
    }
    while (text.size() > begin && text.back() == ' ') text.pop_back();
    text += "\n";
  }
  return text;
}

std::string Table::csv() const {
  std::string text;
  for (std::size_t i = 0; i < columns_.size(); ++i) text += (i == 0 ? "" : ",") + quoted(columns_[i].name);
  text += "\n";
  for (const std::vector<Json>& row : rows_) {
    for (std::size_t i = 0; i < columns_.size(); ++i) text += (i == 0 ? "" : ",") + quoted(plain(row[i], " "));
    text += "\n";
  }
  return text;
}

std::string Table::json() const {
  // Written down cell by cell: a copy of all of it as objects would take longer than the rest.
  std::vector<std::string> keys;
  for (const Column& column : columns_) keys.push_back((keys.empty() ? "{" : ",") + to_line(Json(column.name)) + ":");
  std::string text = "[";
  for (const std::vector<Json>& row : rows_) {
    if (text.size() > 1) text += ",";
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      text += keys[i];
      text += row[i].is_number_integer() ? std::to_string(row[i].get<std::int64_t>()) : to_line(row[i]);
    }
    text += "}";
  }
  return text + "]\n";
}

}  // namespace dtrain::cli
