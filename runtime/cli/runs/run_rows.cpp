#include "runs/run_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::cli {
namespace {

using analysis::CurveValue;
using analysis::RunLine;

template <typename Number>
RunValue value_or_nothing(const std::optional<Number>& number) {
  return number ? RunValue(static_cast<double>(*number)) : RunValue();
}
RunValue value_or_nothing(const std::optional<CurveValue>& number) {
  return number ? RunValue(number->value) : RunValue();
}
RunValue value_or_nothing(const std::string& text) {
  return text.empty() ? RunValue() : RunValue(text);
}

struct RunColumn {
  const char* name;
  RunValue (*of)(const RunRow& row);
};
constexpr std::array<RunColumn, 12> kRunColumns = {{
    {"run", [](const RunRow& row) { return row.number ? value_or_nothing(row.number) : value_or_nothing(row.id()); }},
    {"name", [](const RunRow& row) { return value_or_nothing(row.run.name); }},
    {"state", [](const RunRow& row) { return value_or_nothing(row.run.state); }},
    {"attempts", [](const RunRow& row) { return value_or_nothing(std::optional(row.run.attempts)); }},
    {"batches", [](const RunRow& row) { return value_or_nothing(std::optional(row.run.batches)); }},
    {"loss", [](const RunRow& row) { return value_or_nothing(row.run.loss); }},
    {"metric", [](const RunRow& row) { return value_or_nothing(row.run.metric); }},
    {"best", [](const RunRow& row) { return value_or_nothing(row.run.best_metric); }},
    {"last", [](const RunRow& row) { return value_or_nothing(row.run.last_metric); }},
    {"throughput", [](const RunRow& row) { return value_or_nothing(row.run.samples_per_s); }},
    {"duration", [](const RunRow& row) { return value_or_nothing(row.run.duration_s); }},
    {"started", [](const RunRow& row) { return value_or_nothing(row.run.started_s); }},
}};

bool ends_with_key(const std::string& key, const std::string& end) {
  return key == end || key.ends_with("." + end);
}

RunValue setting_value(const analysis::Settings& settings, const std::string& key) {
  const std::string* found = nullptr;
  if (const auto exact = settings.find(key); exact != settings.end()) {
    found = &exact->second;
  } else {
    for (const auto& [name, text] : settings) {
      if (!ends_with_key(name, key)) continue;
      if (found) return {};  // more than one
      found = &text;
    }
  }
  if (!found) return {};
  const auto number = to_number<double>(*found);
  return number ? RunValue(*number) : RunValue(*found);
}

// Returns the value that orders rows: of a metric, the better value is the smaller one.
double place_of(const RunRow& row, const std::string& key, double value) {
  const bool judged = key == "best" || key == "last";
  return judged && !row.run.smaller_is_better ? -value : value;
}

// Returns -1 if a comes before b. Nan is no value.
int order_of(const RunRow& a, const RunRow& b, const std::string& key) {
  const RunValue in_a = value_of(a, key), in_b = value_of(b, key);
  const auto* x = std::get_if<double>(&in_a);
  const auto* y = std::get_if<double>(&in_b);
  if (x && y) {
    const double one = place_of(a, key, *x), two = place_of(b, key, *y);
    return one < two ? -1 : one > two ? 1 : 0;
  }
  if (x || y) return x ? -1 : 1;
  return std::get<std::string>(in_a).compare(std::get<std::string>(in_b));
}

bool has_value(const RunRow& row, const std::string& key) {
  const RunValue value = value_of(row, key);
  const auto* number = std::get_if<double>(&value);
  return number ? !std::isnan(*number) : !std::holds_alternative<std::monostate>(value);
}

bool compare_numbers(double value, const std::string& comparison, double with) {
  if (comparison == "<") return value < with;
  if (comparison == "<=") return value <= with;
  if (comparison == ">") return value > with;
  if (comparison == ">=") return value >= with;
  return (value == with) == (comparison == "=");
}

}  // namespace

std::string RunRow::id() const {
  return number ? std::to_string(*number) : run.folder.filename().string();
}

std::vector<std::string> names_of_run_columns() {
  std::vector<std::string> names;
  for (const RunColumn& column : kRunColumns) names.emplace_back(column.name);
  return names;
}

RunValue value_of(const RunRow& row, const std::string& key) {
  for (const RunColumn& column : kRunColumns) {
    if (key == column.name) return column.of(row);
  }
  return setting_value(row.run.settings, key);
}

RunFilter read_filter(const std::string& text) {
  const std::size_t at = text.find_first_of("=!<>~");
  RunFilter filter;
  if (at != std::string::npos && at > 0) {
    filter.key = text.substr(0, at);
    const bool two = at + 1 < text.size() && text[at + 1] == '=' && text[at] != '=' && text[at] != '~';
    filter.comparison = text.substr(at, two ? 2 : 1);
    filter.value = text.substr(at + filter.comparison.size());
  }
  if (filter.key.empty() || filter.comparison == "!") {
    throw ConfigError("--filter: '" + text + "' has no key or no comparison",
                      "write a key, one of = != < <= > >= ~, and a value, such as 'state=done' or 'best>0.9'");
  }
  const bool by_size = filter.comparison[0] == '<' || filter.comparison[0] == '>';
  if (by_size && !to_number<double>(filter.value)) {
    throw ConfigError("--filter: '" + text + "' compares with '" + filter.value + "', which is no number",
                      "compare texts with = != or ~ (contains)");
  }
  return filter;
}

bool RunFilter::holds(const RunRow& row) const {
  const RunValue found = value_of(row, key);
  if (std::holds_alternative<std::monostate>(found)) return comparison == "!=";
  const auto* number = std::get_if<double>(&found);
  const auto with = to_number<double>(value);
  if (number && with && comparison != "~") return compare_numbers(*number, comparison, *with);
  if (comparison[0] == '<' || comparison[0] == '>') return false;
  const std::string text = number ? fmt::format("{}", *number) : std::get<std::string>(found);
  if (comparison == "~") return text.find(value) != std::string::npos;
  return (text == value) == (comparison == "=");
}

void check_key(const std::string& option, const std::string& key, const std::vector<RunRow>& rows) {
  std::vector<std::string> names = names_of_run_columns();
  std::set<std::string> settings;
  for (const RunRow& row : rows) {
    for (const auto& [name, text] : row.run.settings) settings.insert(name);
  }
  const auto known = [&](const std::string& name) { return ends_with_key(name, key); };
  if (rows.empty() || std::find(names.begin(), names.end(), key) != names.end() ||
      std::any_of(settings.begin(), settings.end(), known)) {
    return;
  }
  const std::string columns = join(names, ", ");
  names.insert(names.end(), settings.begin(), settings.end());
  const auto near = nearest(key, names);
  throw ConfigError(option + ": no run has '" + key + "'" + (near ? "; did you mean " + *near + "?" : ""),
                    "it may be a key of the experiment, or one of " + columns);
}

void sort_rows(std::vector<RunRow>& rows, const std::string& key, bool reverse) {
  const auto without =
      std::stable_partition(rows.begin(), rows.end(), [&](const RunRow& row) { return has_value(row, key); });
  std::stable_sort(rows.begin(), without, [&](const RunRow& a, const RunRow& b) {
    const int order = order_of(a, b, key);
    return reverse ? order > 0 : order < 0;
  });
}

}  // namespace dtrain::cli
