#include "report/page.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kShortName = 28;  // letters that fit into one line
constexpr std::size_t kLongText = 60;   // letters that need some width to be read

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
  std::string inside = html_escaped(cell.text);
  if (!cell.color.empty() && !cell.bar) inside = fmt::format("<i class=\"dot {}\"></i>{}", cell.color, inside);
  if (cell.bar) {
    inside = fmt::format("<span class=\"bar {}\" style=\"--share:{:.1f}%\"></span>{}", cell.color,
                         std::clamp(*cell.bar, 0.0, 1.0) * 100, inside);
  }
  return first ? fmt::format("<th scope=\"row\"{}>{}</th>", attributes, inside)
               : fmt::format("<td{}>{}</td>", attributes, inside);
}

// The page may fetch nothing, even if its content refers to something outside.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

// Returns JSON for a script element, in which no '<' may end the element early.
std::string json_text(const Json& json) {
  const std::string line = to_line(json);
  std::string result;
  result.reserve(line.size());
  for (const char letter : line) {
    if (letter == '<') {
      result += "\\u003c";
    } else {
      result += letter;
    }
  }
  return result;
}

std::string data_element(const std::string& id, const Json& json) {
  return fmt::format("<script type=\"application/json\" id=\"{}\">{}</script>\n", id, json_text(json));
}

}  // namespace

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
    const std::string hint = column.hint.empty() ? "" : fmt::format(" title=\"{}\"", html_escaped(column.hint));
    head += fmt::format("<th scope=\"col\"{}{}>{}</th>", column.number ? " class=\"number\"" : "", hint,
                        html_escaped(column.title));
  }
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption>\n"
      "<thead><tr>{1}</tr></thead>\n<tbody>\n{2}</tbody></table></div>\n",
      html_escaped(caption_), head, rows_);
}

void Page::begin_section(const std::string& id, const std::string& title) {
  end_section();
  sections_.push_back({id, title});
  body_ += fmt::format("<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">{1}</h2>\n",
                       html_escaped(id), html_escaped(title));
}

void Page::end_section() {
  if (!sections_.empty()) body_ += "</section>\n";
}

void Page::heading(const std::string& text) {
  body_ += fmt::format("<h3>{}</h3>\n", html_escaped(text));
}

void Page::paragraph(const std::string& text) {
  body_ += fmt::format("<p>{}</p>\n", html_escaped(text));
}

void Page::list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const std::string& item : items) body_ += fmt::format("<li>{}</li>\n", html_escaped(item));
  body_ += "</ul>\n";
}

void Page::facts(const std::vector<std::pair<std::string, std::string>>& pairs) {
  body_ += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : pairs) {
    body_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escaped(name), html_escaped(value));
  }
  body_ += "</dl>\n";
}

void Page::absent(const std::string& what, const std::string& why, const std::string& how) {
  body_ += fmt::format("<p class=\"absent\"><strong>{}</strong> {}{}</p>\n", html_escaped(what), html_escaped(why),
                       how.empty() ? "" : " <span class=\"how\">" + html_escaped(how) + "</span>");
}

void Page::table(const Table& table) {
  if (!table.empty()) body_ += table.html();
}

void Page::chart(Chart chart) {
  if (chart.spec.is_null()) return;
  body_ += fmt::format(
      "<figure class=\"chart\" id=\"{0}\"><figcaption><strong>{1}</strong> {2}</figcaption>\n"
      "<div class=\"tools\"></div><div class=\"canvas\" style=\"height:{3}px\"><canvas tabindex=\"0\" role=\"img\" "
      "aria-label=\"{1}. {2}\"></canvas></div></figure>\n",
      html_escaped(chart.id), html_escaped(chart.title), html_escaped(chart.text), chart.height);
  charts_[chart.id] = std::move(chart.spec);
}

void Page::begin_columns() {
  body_ += "<div class=\"columns\">\n";
}
void Page::end_columns() {
  body_ += "</div>\n";
}

std::string Page::html(const std::string& title, const std::string& header, const Json& analysis) {
  end_section();
  std::string contents;
  for (const Entry& entry : sections_) {
    contents += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", html_escaped(entry.id), html_escaped(entry.title));
  }
  std::string result = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n<meta name=\"generator\" content=\"dtrain\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<style>\n",
      html_escaped(title), kPolicy);
  result += kStyle;
  result += fmt::format(
      "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the report</a>\n<header>{}</header>\n"
      "<nav aria-label=\"Sections\"><ol>\n{}</ol></nav>\n<main id=\"main\">\n",
      header, contents);
  result += body_;
  result += "</main>\n<p class=\"speech\" aria-live=\"polite\"></p>\n";
  result += data_element("analysis", analysis);
  result += data_element("charts", charts_);
  result += "<script>\n/*\n";
  result += kChartJsTerms;
  result += "*/\n";
  result += kChartJs;
  result += "\n</script>\n<script>\n";
  result += kScript;
  result += "</script>\n</body>\n</html>\n";
  return result;
}

}  // namespace dtrain::analysis::report
