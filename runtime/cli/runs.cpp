#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "commands.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/listed_run.h"
#include "dtrain/rank/run_folder.h"
#include "table.h"

namespace dtrain::cli {
namespace {

// A run that `dtrain runs` lists: a row has columns, and the keys of its experiment.
struct RunRow {
  std::optional<int> number;  // of the folder's name
  analysis::RunLine run;

  // Returns the run's number, or the folder's name if it has none.
  std::string id() const { return number ? std::to_string(*number) : run.folder.filename().string(); }
};

// Nothing, a number, or a text.
using RunValue = std::variant<std::monostate, double, std::string>;

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

// Returns a column or a key of the experiment ("optimizer.lr"). A key's last part suffices if no other key ends so.
RunValue value_of(const RunRow& row, const std::string& key) {
  for (const RunColumn& column : kRunColumns) {
    if (key == column.name) return column.of(row);
  }
  return setting_value(row.run.settings, key);
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
    const double of_a = place_of(a, key, *x), of_b = place_of(b, key, *y);
    return of_a < of_b ? -1 : of_a > of_b ? 1 : 0;
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

// "accuracy>=0.9": a key, a comparison (= != < <= > >=, or ~: contains) and a value to compare with.
struct RunFilter {
  std::string key, comparison, value;

  bool holds(const RunRow& row) const {
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
};

// ConfigError: it has no comparison, or compares something else than numbers by size.
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

// ConfigError where `key` is neither a column nor a key of the experiment of any of the runs; `option` asked for it.
void check_key(const std::string& option, const std::string& key, const std::vector<RunRow>& rows) {
  std::vector<std::string> names;
  for (const RunColumn& column : kRunColumns) names.emplace_back(column.name);
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

// Sorts numbers ascending, then texts, then rows without a value; rows with equal values stay in their order. By "best"
// and "last" the best come first. `reverse`: the other way round; rows without a value still come last.
void sort_rows(std::vector<RunRow>& rows, const std::string& key, bool reverse) {
  const auto without =
      std::stable_partition(rows.begin(), rows.end(), [&](const RunRow& row) { return has_value(row, key); });
  std::stable_sort(rows.begin(), without, [&](const RunRow& a, const RunRow& b) {
    const int order = order_of(a, b, key);
    return reverse ? order > 0 : order < 0;
  });
}

using analysis::SettingDifference;

constexpr const char* kRunsFolder = "runs";

constexpr const char* kRunsFooter =
    R"(KEY is a column (run, name, state, attempts, batches, loss, metric, best, last, throughput, duration, started) or a
key of the experiment, such as optimizer.lr; the last part of a key is enough where no other key ends like it. A
CONDITION is a key, one of = != < <= > >= ~ (contains), and a value; several must all hold. best and last are values
of searcher.metric in validations, loss is the last one of training, duration is that of all attempts in seconds.
Sorted by best or last, the best runs come first. The last column has the settings in which the runs listed differ.

for example:
  dtrain runs --sort best                            which run is the best?
  dtrain runs --filter state=done --filter 'best>0.9'
  dtrain runs --filter lr=0.01 --sort throughput --reverse
  dtrain runs --csv > runs.csv                       a column for each setting that differs

The column damage names what of a run's files cannot be read, with file and line; the exit code is then 1.)";

struct RunsArguments {
  std::string folder;
  std::string sort;
  bool reverse = false;
  std::vector<std::string> filters;
};

std::vector<RunRow> read_rows(const std::string& folder) {
  std::error_code code;
  if (folder.empty() && !std::filesystem::exists(kRunsFolder, code)) return {};
  const SystemClock clock;
  std::vector<RunRow> rows;
  for (const rank::RunFolder& run_folder : rank::runs_in(folder.empty() ? kRunsFolder : folder)) {
    try {
      rows.push_back({run_folder.number(), launcher::list_run(run_folder, clock).line});
    } catch (const std::exception& error) {  // one of them must not hide the others
      RunRow& row = rows.emplace_back(RunRow{.number = run_folder.number()});
      row.run.folder = run_folder.path;
      row.run.damage = describe(error);
    }
  }
  return rows;
}

std::vector<RunRow> chosen_rows(const RunsArguments& arguments) {
  std::vector<RunFilter> filters;
  for (const std::string& filter : arguments.filters) filters.push_back(read_filter(filter));
  std::vector<RunRow> rows = read_rows(arguments.folder);
  for (const RunFilter& filter : filters) check_key("--filter", filter.key, rows);
  if (!arguments.sort.empty()) check_key("--sort", arguments.sort, rows);
  std::erase_if(rows, [&](const RunRow& row) {
    return !std::all_of(filters.begin(), filters.end(), [&](const RunFilter& filter) { return filter.holds(row); });
  });
  if (!arguments.sort.empty()) {
    sort_rows(rows, arguments.sort, arguments.reverse);
  } else if (arguments.reverse) {
    std::reverse(rows.begin(), rows.end());
  }
  return rows;
}

std::vector<SettingDifference> differing_settings(const std::vector<RunRow>& rows) {
  std::vector<analysis::Settings> settings;
  for (const RunRow& row : rows) settings.push_back(row.run.settings);
  return analysis::differences_of(settings);
}

// Returns the last part of each key, "lr" for "optimizer.lr", or the whole key if several end alike.
std::vector<std::string> short_keys(const std::vector<SettingDifference>& differences) {
  const auto last_part = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  std::map<std::string, int> count;
  for (const SettingDifference& difference : differences) ++count[last_part(difference.key)];
  std::vector<std::string> result;
  for (const SettingDifference& difference : differences) {
    result.push_back(count[last_part(difference.key)] > 1 ? difference.key : last_part(difference.key));
  }
  return result;
}

std::optional<double> metric_number(const std::optional<CurveValue>& value) {
  return value ? std::optional(value->value) : std::nullopt;
}

Cell or_none(const std::string& text) {
  return text.empty() ? Cell() : Cell(text);
}

std::string as_text(const std::vector<RunRow>& rows) {
  if (rows.empty()) return "no runs\n";
  const std::vector<SettingDifference> differ = differing_settings(rows);
  const std::vector<std::string> keys = short_keys(differ);
  Table table({{"run"},
               {"name"},
               {"state"},
               {"attempts"},
               {"batches"},
               {"loss"},
               {"metric"},
               {"best"},
               {"last"},
               {.name = "samples/s", .unit = Table::Unit::kRate},
               {.name = "duration", .unit = Table::Unit::kSeconds},
               {"differs"},
               {"damage"}},
              ListFormat::kText);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const analysis::RunLine& run = rows[i].run;
    std::vector<std::string> settings;
    for (std::size_t k = 0; k < differ.size(); ++k) settings.push_back(keys[k] + "=" + differ[k].values[i]);
    const std::string text = analysis::shortened_setting(join(settings, " "));
    const std::string id = rows[i].id();
    table.add({rows[i].number ? Cell(*rows[i].number) : Cell(id), or_none(run.name), or_none(run.state),
               run.attempts > 1 ? Cell(run.attempts) : Cell(), run.batches, metric_number(run.loss),
               or_none(run.metric), metric_number(run.best_metric), metric_number(run.last_metric), run.samples_per_s,
               run.duration_s, or_none(text), or_none(run.damage)});
  }
  return table.finish();
}

std::string as_csv(const std::vector<RunRow>& rows) {
  const std::vector<SettingDifference> differ = differing_settings(rows);
  std::vector<Table::Column> columns;
  for (const char* name : {"run", "name", "state", "attempts", "batches", "loss", "metric", "best", "best_batch",
                           "last", "last_batch", "samples_per_s", "duration_s", "started", "folder", "damage"}) {
    columns.push_back({name});
  }
  for (const SettingDifference& setting : differ) columns.push_back({setting.key});
  Table table(columns, ListFormat::kCsv);
  const auto batch = [](const std::optional<CurveValue>& value) {
    return value ? std::optional(value->batch) : std::nullopt;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const analysis::RunLine& run = rows[i].run;
    const std::string id = rows[i].id(), folder = run.folder.string();
    const std::string start = run.started_s ? format_utc(Nanoseconds(std::llround(*run.started_s * 1e9))) : "";
    std::vector<Cell> row = {id,
                             run.name,
                             or_none(run.state),
                             run.attempts,
                             run.batches,
                             metric_number(run.loss),
                             or_none(run.metric),
                             metric_number(run.best_metric),
                             batch(run.best_metric),
                             metric_number(run.last_metric),
                             batch(run.last_metric),
                             run.samples_per_s,
                             run.duration_s,
                             or_none(start),
                             folder,
                             or_none(run.damage)};
    for (const SettingDifference& setting : differ) row.emplace_back(setting.values[i]);
    table.add(row);
  }
  return table.finish();
}

std::string as_json(const std::vector<RunRow>& rows) {
  const std::vector<SettingDifference> differ = differing_settings(rows);
  Json list = Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json run = {{"run", or_null(rows[i].number)}};
    run.update(to_json(rows[i].run));
    Json& settings = run["differs"] = Json::object();
    for (const SettingDifference& setting : differ) settings[setting.key] = setting.values[i];
    list.push_back(std::move(run));
  }
  return to_line(list) + "\n";
}

}  // namespace

void add_runs_list(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<RunsArguments>();
  CLI::App* command = app.add_subcommand("runs", "List the runs of a folder: how each went, and what differs");
  command->add_option("DIR", arguments->folder, "The folder that holds the runs' folders (default: ./runs)");
  command->add_option("--sort", arguments->sort, "Sort by a column or a key of the experiment (default: run)")
      ->type_name("KEY");
  command->add_flag("--reverse", arguments->reverse, "In the other order");
  command->add_option("--filter", arguments->filters, "List only runs for which this holds; may be repeated")
      ->type_name("CONDITION")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  auto format = add_list_format(*command);
  command->footer(kRunsFooter);
  command->callback([arguments, format, exit_code] {
    const std::vector<RunRow> rows = chosen_rows(*arguments);
    const std::string text = *format == ListFormat::kText  ? as_text(rows)
                             : *format == ListFormat::kCsv ? as_csv(rows)
                                                           : as_json(rows);
    std::fputs(text.c_str(), stdout);
    const auto damaged = std::ranges::count_if(rows, [](const RunRow& row) { return !row.run.damage.empty(); });
    if (damaged == 0) return;
    std::fprintf(stderr, "dtrain: warning: the files of %s cannot be read completely: the column damage says which\n",
                 count_of(damaged, "run").c_str());
    *exit_code = ExitCode::kRunFailed;
  });
}

}  // namespace dtrain::cli
