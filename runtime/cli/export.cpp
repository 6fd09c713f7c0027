#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/analysis/export.h"
#include "dtrain/analysis/report.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/listed_run.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
};

std::vector<rank::RunFolder> different_runs(const std::vector<std::string>& names) {
  std::vector<rank::RunFolder> folders;
  for (const std::string& name : names) {
    const rank::RunFolder folder = rank::find_run(name);
    const auto same = [&](const rank::RunFolder& other) { return fs::equivalent(folder.path, other.path); };
    if (std::any_of(folders.begin(), folders.end(), same)) {
      throw ConfigError(name + ": the run " + folder.path.string() + " is named twice", "name each run once");
    }
    folders.push_back(folder);
  }
  return folders;
}

void write_report_of(const std::vector<rank::RunFolder>& folders, const fs::path& file) {
  if (folders.size() == 1) return analysis::write_report(folders.front().path, file);
  const SystemClock clock;
  std::vector<analysis::ListedRun> runs;
  for (const rank::RunFolder& folder : folders) runs.push_back(launcher::list_run(folder, clock));
  analysis::write_comparison(runs, file);
}

constexpr int kMostSteps = 1000;

struct TraceArguments {
  std::string run, output, hta;
  int steps = 10;
  bool now = false, json = false;
};

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

void ask(const rank::RunFolder& folder, int steps) {
  const auto say = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  const rank::RequestedTrace trace = rank::request_trace(folder, steps, say);
  for (const int rank : trace.failed) std::fprintf(stderr, "note: rank %d has no trace; its log shows why\n", rank);
}

void write_hta(const analysis::RunProfile& profile, const TraceArguments& arguments) {
  const analysis::HtaFiles files = analysis::write_hta_files(profile, arguments.hta);
  print_notes(files.notes);
  if (arguments.json) {
    Json paths = Json::array();
    for (const auto& path : files.files) paths.push_back(path.string());
    std::printf("%s\n", to_line({{"files", paths}, {"notes", files.notes}}).c_str());
    return;
  }
  std::printf("%s for HolisticTraceAnalysis: TraceAnalysis(trace_dir=\"%s\")\n",
              count_of(files.files.size(), "rank").c_str(), arguments.hta.c_str());
}

void write_merged(const analysis::RunProfile& profile, const TraceArguments& arguments) {
  const std::filesystem::path given = arguments.output;
  const auto path = given.empty() ? profile.folder / "trace.json.gz" : given;
  const analysis::MergedTrace merged = analysis::merge_traces(profile, path);
  print_notes(merged.notes);
  if (arguments.json) {
    std::printf("%s\n", to_line(analysis::to_json(merged)).c_str());
    return;
  }
  const std::string clocks = !merged.error_known ? "clocks of the hosts not compared"
                             : merged.error_ns == 0
                                 ? "one clock"
                                 : "clocks to within " + format_duration(Nanoseconds(merged.error_ns));
  std::printf("%s, %lld collectives%s, %s\n", count_of(merged.ranks.size(), "rank").c_str(),
              static_cast<long long>(merged.collectives),
              merged.from_dumps ? " (no traced batches: only steps and collectives from the dumps)" : "",
              clocks.c_str());
  std::printf("%s, %s: open it in https://ui.perfetto.dev\n", merged.path.c_str(),
              format_bytes(static_cast<double>(merged.bytes)).c_str());
}

struct ExportArguments {
  std::string run, format, output;
};

}  // namespace

void add_report(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Write the report of a run, or compare runs: one HTML file that opens offline");
  add_runs(*command, arguments->runs);
  command
      ->add_option("-o,--output", arguments->output,
                   "Where to write it (default: report.html, in the run's folder; of several runs, in this folder)")
      ->type_name("FILE");
  command->footer(
      "Every run writes its report at its end. This command writes it again, also for a run that is in progress or\n"
      "whose folder came from another machine. Of several runs it writes one page: their curves of learning laid over\n"
      "each other, and what of their experiments differs. docs/report.md describes the contents.");
  command->callback([arguments] {
    const std::vector<rank::RunFolder> folders = different_runs(arguments->runs);
    const fs::path folder = folders.size() == 1 ? folders.front().path : fs::path();
    const fs::path file = arguments->output.empty() ? folder / analysis::kReportFile : fs::path(arguments->output);
    write_report_of(folders, file);
    std::printf("%s\n", file.c_str());
  });
}

void add_trace(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* command =
      app.add_subcommand("trace", "Merge the traces of all ranks into one time line; --now records new ones first");
  add_run(*command, arguments->run);
  CLI::Option* now =
      command->add_flag("--now", arguments->now, "First trace the next steps of the run, which must be in progress");
  command->add_option("--steps", arguments->steps, "With --now: the number of steps (default: 10)")
      ->check(CLI::Range(1, kMostSteps))
      ->needs(now);
  command
      ->add_option("-o,--output", arguments->output, "The file to write (default: trace.json.gz in the run's folder)")
      ->type_name("FILE");
  command->add_option("--hta", arguments->hta, "Write one file for each rank instead, for HolisticTraceAnalysis")
      ->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print as JSON what was written");
  command->callback([arguments] {
    const rank::RunFolder folder = rank::find_run(arguments->run);
    if (arguments->now) ask(folder, arguments->steps);
    const analysis::RunProfile profile = analysis::load_run(folder.path);
    if (arguments->hta.empty()) {
      write_merged(profile, *arguments);
    } else {
      write_hta(profile, *arguments);
    }
  });
}

void add_export(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write the records of a run in a format for other programs");
  add_run(*command, arguments->run);
  command->add_option("--format", arguments->format, "The format")
      ->required()
      ->check(CLI::IsMember({"sqlite", "csv", "tensorboard"}));
  command
      ->add_option(
          "-o,--output", arguments->output,
          "Where to write: a file for sqlite (default: profile.db in the run's folder), a folder for csv (default: "
          "tables in it) and tensorboard (default: tensorboard in it)")
      ->type_name("PATH");
  command->callback([arguments] {
    const std::filesystem::path folder = rank::find_run(arguments->run).path;
    const auto target = [&](const char* name) {
      return arguments->output.empty() ? folder / name : std::filesystem::path(arguments->output);
    };
    const analysis::RunProfile profile = analysis::load_run(folder);
    for (const std::string& warning : profile.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    if (arguments->format == "tensorboard") {
      const auto path = target("tensorboard");
      const auto done = analysis::export_tensorboard(profile, path);
      std::printf("%lld values in %zu event files: tensorboard --logdir %s\n", static_cast<long long>(done.rows),
                  done.files.size(), path.c_str());
    } else {
      const bool sqlite = arguments->format == "sqlite";
      const auto path = target(sqlite ? "profile.db" : "tables");
      const auto done = sqlite ? analysis::export_sqlite(profile, path) : analysis::export_csv(profile, path);
      std::printf("%lld rows in %zu tables: %s\n", static_cast<long long>(done.rows), analysis::run_tables().size(),
                  path.c_str());
    }
  });
}

}  // namespace dtrain::cli
