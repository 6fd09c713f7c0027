#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"
#include "runs/run_rows.h"
#include "table.h"

namespace dtrain::cli {
namespace {

using analysis::CurveValue;
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
  dtrain runs --csv > runs.csv                       a column for each setting that differs)";

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
  for (const run::RunFolder& one : run::runs_in(folder.empty() ? kRunsFolder : folder)) {
    rows.push_back({one.number(), list_run(one, clock).line});
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
  for (const SettingDifference& one : differences) ++count[last_part(one.key)];
  std::vector<std::string> result;
  for (const SettingDifference& one : differences) {
    result.push_back(count[last_part(one.key)] > 1 ? one.key : last_part(one.key));
  }
  return result;
}

std::optional<double> metric_number(const std::optional<CurveValue>& value) {
  return value ? std::optional(value->value) : std::nullopt;
}

std::optional<std::string> start_text(const RunRow& row) {
  if (!row.run.started_s) return std::nullopt;
  return format_utc(Nanoseconds(std::llround(*row.run.started_s * 1e9)));
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
               {"differs"}},
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
               run.duration_s, or_none(text)});
  }
  return table.finish();
}

std::string as_csv(const std::vector<RunRow>& rows) {
  const std::vector<SettingDifference> differ = differing_settings(rows);
  std::vector<Table::Column> columns;
  for (const char* name : {"run", "name", "state", "attempts", "batches", "loss", "metric", "best", "best_batch",
                           "last", "last_batch", "samples_per_s", "duration_s", "started", "folder"}) {
    columns.push_back({name});
  }
  for (const SettingDifference& one : differ) columns.push_back({one.key});
  Table table(columns, ListFormat::kCsv);
  const auto batch = [](const std::optional<CurveValue>& value) {
    return value ? std::optional(value->batch) : std::nullopt;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const analysis::RunLine& run = rows[i].run;
    const std::string id = rows[i].id(), folder = run.folder.string();
    const std::optional<std::string> start = start_text(rows[i]);
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
                             start,
                             folder};
    for (const SettingDifference& one : differ) row.emplace_back(one.values[i]);
    table.add(row);
  }
  return table.finish();
}

std::string as_json(const std::vector<RunRow>& rows) {
  const std::vector<SettingDifference> differ = differing_settings(rows);
  Json list = Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json run = {{"run", rows[i].number ? Json(*rows[i].number) : Json()}};
    run.update(to_json(rows[i].run));
    Json& settings = run["differs"] = Json::object();
    for (const SettingDifference& one : differ) settings[one.key] = one.values[i];
    list.push_back(std::move(run));
  }
  return to_line(list) + "\n";
}

}  // namespace

void add_runs_list(CLI::App& app, ExitCode*) {
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
  command->callback([arguments, format] {
    const std::vector<RunRow> rows = chosen_rows(*arguments);
    const std::string text = *format == ListFormat::kText  ? as_text(rows)
                             : *format == ListFormat::kCsv ? as_csv(rows)
                                                           : as_json(rows);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace dtrain::cli
