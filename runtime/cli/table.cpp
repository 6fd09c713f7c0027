#include "table.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"

namespace dtrain::cli {
namespace {

// Marks in the cells for people, where no other control character stays.
constexpr char kEnd = '\0';
constexpr char kRight = '\1';  // before the cells that are aligned to the right

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

void append_number(std::string& text, std::int64_t number) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

// Appends the fewest digits that give the same number again.
void append_number(std::string& text, double number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

std::string number_for_people(double number, Table::Unit unit) {
  if (!std::isfinite(number)) return non_finite_text(number);
  if (unit == Table::Unit::kBytes) return format_bytes(number);
  if (unit == Table::Unit::kSeconds) return format_duration(Nanoseconds(std::llround(number * 1e9)));
  return unit == Table::Unit::kRate ? format_rate(number) : fmt::format("{:.4g}", number);
}

void append_item(std::string& text, std::int64_t number) {
  append_number(text, number);
}
void append_item(std::string& text, std::string_view item) {
  text += item;
}

void append_plain(std::string& text, const Cell& cell, char separator) {
  const auto list = [&](const auto& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text += separator;
      append_item(text, items[i]);
    }
  };
  std::visit(Overloaded{[](std::monostate) {}, [&](bool value) { text += value ? "yes" : "no"; },
                        [&](std::int64_t number) { append_number(text, number); },
                        [&](double number) { append_number(text, number); },
                        [&](std::string_view value) { text += value; }, [&](const auto& items) { list(items); }},
             cell.value());
}

void append_json(std::string& text, std::string_view value) {
  const auto simple = [](char c) { return c >= 0x20 && c != '"' && c != '\\'; };  // and ASCII
  if (!std::all_of(value.begin(), value.end(), simple)) {
    text += to_line(Json(value));
    return;
  }
  text += '"';
  text += value;
  text += '"';
}
void append_json(std::string& text, std::int64_t number) {
  append_number(text, number);
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20;
}

// Bytes that continue a UTF-8 character take no column of their own.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
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

Table::Table(std::vector<Column> columns, ListFormat format) : columns_(std::move(columns)), format_(format) {
  for (const Column& column : columns_) {
    shapes_.push_back({.key = (shapes_.empty() ? "{" : ",") + to_line(Json(column.name)) + ":"});
  }
  if (format_ == ListFormat::kJson) {
    text_ = "[";
    return;
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    if (format_ == ListFormat::kCsv) {
      if (i > 0) text_ += ',';
      add_to_csv(column.name);
    } else {
      add_for_people(column.title.empty() ? column.name : column.title, i);
      shapes_[i].used = false;
    }
  }
  if (format_ == ListFormat::kCsv) text_ += '\n';
}

void Table::add(std::span<const Cell> row) {
  if (format_ == ListFormat::kJson && rows_ > 0) text_ += ',';
  ++rows_;
  std::size_t column = 0;
  for (const Cell& cell : row) {
    if (format_ == ListFormat::kText) {
      add_for_people(cell, column);
    } else if (format_ == ListFormat::kCsv) {
      if (column > 0) text_ += ',';
      add_to_csv(cell);
    } else {
      text_ += shapes_[column].key;
      add_to_json(cell);
    }
    ++column;
  }
  if (format_ == ListFormat::kJson) text_ += '}';
  if (format_ == ListFormat::kCsv) text_ += '\n';
}

void Table::add_for_people(const Cell& cell, std::size_t column) {
  const auto* number = std::get_if<std::int64_t>(&cell.value());
  const auto* real = std::get_if<double>(&cell.value());
  if (number || real) text_ += kRight;
  const std::size_t begin = text_.size();
  const Unit unit = columns_[column].unit;
  if (real || (number && unit != Unit::kNone)) {
    text_ += number_for_people(real ? *real : static_cast<double>(*number), unit);
  } else {
    append_plain(text_, cell, ',');
  }
  const auto special = [](char c) { return is_control(c) || static_cast<unsigned char>(c) > 0x7E; };
  if (std::any_of(text_.begin() + static_cast<std::ptrdiff_t>(begin), text_.end(), special)) {
    const std::string shown =
        printable(std::string_view(text_).substr(begin));  // here, because the width depends on it
    text_.replace(begin, std::string::npos, shown);
    std::replace_if(text_.begin() + static_cast<std::ptrdiff_t>(begin), text_.end(), is_control, ' ');
  }
  Shape& shape = shapes_[column];
  shape.width = std::max(shape.width, width_of(std::string_view(text_).substr(begin)));
  shape.used |= !std::holds_alternative<std::monostate>(cell.value());
  text_ += kEnd;
}

void Table::add_to_csv(const Cell& cell) {
  const std::size_t begin = text_.size();
  append_plain(text_, cell, ' ');
  const auto special = [](char c) { return c == ',' || c == '"' || c == '\r' || c == '\n'; };
  if (std::none_of(text_.begin() + static_cast<std::ptrdiff_t>(begin), text_.end(), special)) return;
  for (std::size_t quote = begin; (quote = text_.find('"', quote)) != std::string::npos; quote += 2) {
    text_.insert(quote, 1, '"');
  }
  text_.insert(begin, 1, '"');
  text_ += '"';
}

void Table::add_to_json(const Cell& cell) {
  const auto list = [&](const auto& items) {
    text_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += ',';
      append_json(text_, items[i]);
    }
    text_ += ']';
  };
  std::visit(
      Overloaded{[&](std::monostate) { text_ += "null"; }, [&](bool value) { text_ += value ? "true" : "false"; },
                 [&](std::int64_t number) { append_number(text_, number); },
                 [&](double number) { text_ += to_line(number_or_text(number)); },
                 [&](std::string_view value) { append_json(text_, value); }, [&](const auto& items) { list(items); }},
      cell.value());
}

std::string Table::finish() {
  if (format_ == ListFormat::kText) return aligned();
  if (format_ == ListFormat::kJson) text_ += "]\n";
  return std::move(text_);
}

std::string Table::aligned() const {
  std::string text;
  std::size_t row_width = 1;
  for (const Shape& shape : shapes_) row_width += shape.width + 2;
  text.reserve(row_width * (rows_ + 1));
  std::string_view rest = text_;
  for (std::size_t row = 0; row <= rows_; ++row) {
    const std::size_t begin = text.size();
    for (const Shape& shape : shapes_) {
      std::string_view cell = rest.substr(0, rest.find(kEnd));
      rest.remove_prefix(cell.size() + 1);
      if (!shape.used && rows_ > 0) continue;
      const bool right = !cell.empty() && cell.front() == kRight;
      if (right) cell.remove_prefix(1);
      const std::size_t fill = shape.width - width_of(cell);
      if (text.size() > begin) text += "  ";
      if (right) text.append(fill, ' ');
      text += cell;
      if (!right) text.append(fill, ' ');
    }
    while (text.size() > begin && text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

}  // namespace dtrain::cli
