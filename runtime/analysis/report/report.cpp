#include "dtrain/analysis/report.h"

#include <cmath>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "read/text.h"
#include "report/charts.h"
#include "report/page.h"
#include "report/sections.h"
#include "summary/summary_words.h"

namespace dtrain::analysis {
namespace {

std::string rank_choice(const report::Input& input) {
  if (input.drawn().size() < 2) return {};
  std::string options = "<option value=\"\">all ranks</option>";
  for (const RankProfile* rank : input.drawn()) {
    options += fmt::format("<option value=\"{0}\">rank {0}</option>", rank->rank);
  }
  return fmt::format("<label>Show <select id=\"rank\">{}</select></label>", options);
}

std::string header(const report::Input& input) {
  const RunSummary& s = input.analysis.summary;
  const std::string state = s.state.empty() ? "not ended" : s.state;
  std::string about = count_of(s.world_size, "rank") + ", " + extent_text(s);
  if (s.loop_s) about += ", loop " + seconds_text(*s.loop_s);
  if (!s.mock.empty()) about += "; " + s.mock;
  return fmt::format(
      "<h1>{}</h1><span class=\"state {}\">{}</span><span class=\"about\">{}</span>"
      "<div class=\"controls\">{}<button type=\"button\" id=\"theme\">Theme: auto</button></div>",
      html_escaped(s.name), html_escaped(state), html_escaped(state), html_escaped(about), rank_choice(input));
}

}  // namespace

std::string render_report(const RunProfile& run, const Analysis& analysis) {
  const report::Input input(run, analysis);
  report::Page page;
  for (const auto write : {report::write_verdict,        report::write_job,
                           report::write_learning,       report::write_checkpoints,
                           report::write_waterfall,      report::write_roofline,
                           report::write_timeline,       report::write_stragglers,
                           report::write_collectives,    report::write_what_if,
                           report::write_system,         report::write_framework,
                           report::write_operators,      report::write_rules,
                           report::write_steps,          report::write_gpu_utilization,
                           report::write_balance,        report::write_data_loading,
                           report::write_batch_size,     report::write_cpu_bottlenecks,
                           report::write_io_bottlenecks, report::write_memory,
                           report::write_completeness}) {
    write(page, input);
  }
  return page.html("dtrain report: " + analysis.summary.name, header(input), to_json(analysis));
}

void write_report(const std::filesystem::path& folder, const std::filesystem::path& file) {
  const RunProfile run = load_run(folder);
  write_file_atomic(file, render_report(run, analyze(run)));
}

namespace fs = std::filesystem;

namespace report {
namespace {

// A run on the page of several runs.
struct ComparedRun {
  std::string name;  // unique
  const RunCurves& curves;
  const RunLine& line;
};

// Returns the name of each folder, or its path if two folders have the same name.
std::vector<std::string> names_of(std::span<const ListedRun> runs) {
  std::multiset<std::string> names;
  const auto name = [](const fs::path& folder) { return fs::absolute(folder).lexically_normal().filename().string(); };
  for (const ListedRun& run : runs) names.insert(name(run.line.folder));
  std::vector<std::string> result;
  for (const ListedRun& run : runs) {
    const fs::path& folder = run.line.folder;
    result.push_back(names.count(name(folder)) > 1 ? folder.string() : name(folder));
  }
  return result;
}

Cell number_cell(const std::optional<double>& value, const std::string& shown) {
  if (!value) return "-";
  return std::isfinite(*value) ? Cell(shown, *value) : Cell(shown);
}

void write_runs(Page& page, const std::vector<ComparedRun>& runs) {
  page.begin_section("runs", "Runs");
  Table table("The runs", {{"run"},
                           {"state"},
                           {"metric", false, "searcher.metric, of validations"},
                           {"best", true},
                           {"last", true},
                           {"last loss", true, "of training"},
                           {"samples/s", true, "between lines of metrics.jsonl"},
                           {"ran for", true, "all attempts, without the time between them"},
                           {"batches", true},
                           {"attempts", true}});
  for (const ComparedRun& run : runs) {
    const RunLine& line = run.line;
    const auto last = [](const std::optional<CurveValue>& value) {
      return value ? number_cell(value->value, value_text(value->value)) : Cell("-");
    };
    table.row({run.name, line.state.empty() ? "-" : line.state, line.metric.empty() ? "-" : line.metric,
               value_cell(line.best_metric), last(line.last_metric), last(line.loss),
               number_cell(line.samples_per_s, format_rate(line.samples_per_s.value_or(0))),
               number_cell(line.duration_s, seconds_text(line.duration_s.value_or(0))), Cell::count(line.batches),
               Cell::count(line.attempts)});
  }
  page.table(table);
}

void write_curves(Page& page, const std::vector<ComparedRun>& runs) {
  page.begin_section("learning", "Learning");
  std::vector<NamedCurves> curves;
  std::vector<std::string> without;
  for (const ComparedRun& run : runs) {
    curves.push_back({run.name, &run.curves});
    if (run.curves.curves.empty()) without.push_back(run.name);
  }
  if (without.size() == runs.size()) {
    return page.absent("No metrics.", "None of the runs has written training or validation metrics.");
  }
  if (!without.empty()) page.paragraph("No metrics have been written by " + join_with_and(without) + ".");
  page.paragraph(
      "Each run has the same colour in all charts; its name above a chart hides and shows it. Time is that of "
      "training, from each run's start, without the time between attempts.");
  write_curve_controls(page);
  const std::size_t left_out = write_curve_charts(page, curves, runs.front().line.metric);
  if (left_out > 0) page.paragraph(count_text(static_cast<std::int64_t>(left_out)) + " more metrics are not drawn.");
}

void write_differences(Page& page, const std::vector<ComparedRun>& runs) {
  page.begin_section("differences", "What differs");
  std::vector<Settings> settings;
  std::vector<Column> columns = {{"key"}};
  for (const ComparedRun& run : runs) {
    settings.push_back(run.line.settings);
    columns.push_back({run.name});
  }
  const std::vector<SettingDifference> differences = differences_of(settings);
  if (differences.empty()) return page.paragraph("The experiments of these runs have the same settings.");
  Table table("Keys of the experiments that differ; -: the run does not have it", std::move(columns));
  for (const SettingDifference& difference : differences) {
    std::vector<Cell> row = {difference.key};
    for (const std::string& value : difference.values) row.emplace_back(shortened_setting(value));
    table.row(row);
  }
  page.table(table);
}

std::string comparison_header(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const ComparedRun& run : runs) names.push_back(run.name);
  return fmt::format(
      "<h1>{} runs</h1><span class=\"about\">{}</span>"
      "<div class=\"controls\"><button type=\"button\" id=\"theme\">Theme: auto</button></div>",
      runs.size(), html_escaped(join(names, ", ")));
}

}  // namespace
}  // namespace report

void write_comparison(std::span<const ListedRun> listed, const fs::path& file) {
  std::vector<report::ComparedRun> runs;
  const std::vector<std::string> names = report::names_of(listed);
  for (std::size_t i = 0; i < listed.size(); ++i) runs.push_back({names[i], listed[i].curves, listed[i].line});
  report::Page page;
  report::write_runs(page, runs);
  report::write_curves(page, runs);
  report::write_differences(page, runs);
  Json contents = Json::array();
  for (const ListedRun& run : listed) contents.push_back(to_json(run.line));
  write_file_atomic(file, page.html(fmt::format("dtrain report of {} runs", runs.size()),
                                    report::comparison_header(runs), {{"runs", std::move(contents)}}));
}

}  // namespace dtrain::analysis
