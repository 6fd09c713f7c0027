#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/analysis/trace.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

constexpr int kMostSteps = 1000;

struct TraceArguments {
  std::string run, output, hta;
  int steps = 10;
  bool now = false, json = false;
};

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

void ask(const run::RunFolder& folder, int steps) {
  const auto say = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  const run::RequestedTrace trace = run::request_trace(folder, steps, say);
  for (const int rank : trace.failed) {
    std::fprintf(stderr, "note: rank %d has no trace; its log shows why\n", rank);
  }
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

}  // namespace

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
    const run::RunFolder folder = run::find_run(arguments->run);
    if (arguments->now) ask(folder, arguments->steps);
    const analysis::RunProfile profile = analysis::load_run(folder.path);
    if (arguments->hta.empty()) {
      write_merged(profile, *arguments);
    } else {
      write_hta(profile, *arguments);
    }
  });
}

}  // namespace dtrain::cli
