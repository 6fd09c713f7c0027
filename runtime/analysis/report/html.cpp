#include "report/html.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kShortName = 28;  // letters that need no second line
constexpr std::size_t kLongText = 60;   // … that need some width to be read

std::string cell_html(const Cell& cell, const Column& column, bool first) {
  std::string attributes;
  if (column.number) {
    attributes = " class=\"number\"";
  } else if (column.one_line || (first && cell.text.size() <= kShortName)) {
    attributes = " class=\"short\"";
  } else if (cell.text.size() >= kLongText) {
    attributes = " class=\"long\"";
  }
  if (cell.value) attributes += fmt::format(" data-value=\"{:.9g}\"", *cell.value);
  std::string inside = escape(cell.text);
  if (!cell.color.empty() && !cell.bar) inside = fmt::format("<i class=\"dot {}\"></i>{}", cell.color, inside);
  if (cell.bar) {
    inside = fmt::format("<span class=\"bar {}\" style=\"--share:{:.1f}%\"></span>{}", cell.color,
                         std::clamp(*cell.bar, 0.0, 1.0) * 100, inside);
  }
  return first ? fmt::format("<th scope=\"row\"{}>{}</th>", attributes, inside)
               : fmt::format("<td{}>{}</td>", attributes, inside);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

Table::Table(std::string caption, std::vector<Column> columns)
    : caption_(std::move(caption)), columns_(std::move(columns)) {}

Table& Table::row(const std::vector<Cell>& cells, int rank) {
  rows_ += rank < 0 ? "<tr>" : fmt::format("<tr data-rank=\"{}\">", rank);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    rows_ += cell_html(i < cells.size() ? cells[i] : Cell(""), columns_[i], i == 0);
  }
  rows_ += "</tr>\n";
  return *this;
}

std::string Table::html() const {
  std::string head;
  for (const Column& column : columns_) {
    const std::string hint = column.hint.empty() ? "" : fmt::format(" title=\"{}\"", escape(column.hint));
    head += fmt::format("<th scope=\"col\"{}{}>{}</th>", column.number ? " class=\"number\"" : "", hint,
                        escape(column.title));
  }
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption>\n"
      "<thead><tr>{1}</tr></thead>\n<tbody>\n{2}</tbody></table></div>\n",
      escape(caption_), head, rows_);
}

}  // namespace dtrain::analysis::report
