// Reading and analysing the dumps of a long run: 100,000 steps on 64 ranks, as bounded dumps keep them.
//
//   bench_analysis [--json] [--steps 100000] [--ranks 64] [--folder DIR]
//
// The run never was (harness/synthetic_run.h), its files are real. `dtrain analyze --json` reads them as a process of
// its own, and so does `dtrain report`; times and memory are those processes'. With --folder the run is written there
// and stays.
#include <cstdlib>
#include <iostream>

#include <fcntl.h>
#include <sys/resource.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "harness/synthetic_run.h"
#include "run_folder.h"

namespace {

using namespace dtrain;

constexpr int kRuns = 3;

struct Arguments {
  std::int64_t steps = 100'000;
  int ranks = 64;
  std::filesystem::path folder;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") continue;
    if (i + 1 == argc)
      throw ConfigError("bench_analysis: unknown argument or missing value: " + name, "see its source");
    const std::string value = argv[++i];
    if (name == "--steps") arguments.steps = std::stoll(value);
    if (name == "--ranks") arguments.ranks = std::stoi(value);
    if (name == "--folder") arguments.folder = value;
  }
  return arguments;
}

// Eight ranks a host; a slow rank, a stall now and then, loading that varies.
test::SyntheticRun plan(const Arguments& arguments) {
  test::SyntheticRun run;
  run.ranks = arguments.ranks;
  run.ranks_per_host = 8;
  run.steps = arguments.steps;
  run.noise = 0.05;
  run.change = [](int rank, std::int64_t batch, test::SyntheticStep& step) {
    constexpr std::int64_t kMs = 1'000'000;
    step.own_ns[static_cast<std::size_t>(profile::Phase::kDataloaderNext)] += (batch * 13 + rank) % 7 * kMs / 20;
    if (rank == 3) step.own_ns[static_cast<std::size_t>(profile::Phase::kForward)] += 2 * kMs;
    if (batch % 500 == 0) step.own_ns[static_cast<std::size_t>(profile::Phase::kOther)] += 300 * kMs;
  };
  return run;
}

// Seconds that `dtrain` took with these arguments.
double seconds_of(std::vector<std::string> arguments, const std::filesystem::path& output) {
  const UniqueFd out(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  arguments.insert(arguments.begin(), executable_path().parent_path() / "dtrain");
  ProcessOptions options;
  options.command = std::move(arguments);
  options.fds = {{1, out.get()}};
  const std::int64_t started = SystemClock().monotonic().count();
  Process process = Process::start(options);
  const auto status = process.wait(std::chrono::minutes(10));
  if (!status || !status->success()) throw Error("dtrain " + options.command.at(1) + " failed");
  return static_cast<double>(SystemClock().monotonic().count() - started) / 1e9;
}

double peak_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);  // of the child that took most
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse(argc, argv);
  const analysis::RunFolder scratch;
  const auto folder = arguments.folder.empty() ? scratch.path() / "run" : arguments.folder;
  const auto truth = test::write_synthetic_run(folder, plan(arguments));
  const auto output = scratch.path() / "analysis.json";
  double slowest = 0;
  for (int i = 0; i < kRuns; ++i) slowest = std::max(slowest, seconds_of({"analyze", folder, "--json"}, output));
  const double peak = peak_mb();
  const Json result = read_json(output);
  const auto page = scratch.path() / "report.html";
  const double report = seconds_of({"report", folder, "--output", page}, output);
  std::cout << Json{{"benchmark", "bench_analysis"},
                    {"steps", arguments.steps},
                    {"ranks", arguments.ranks},
                    {"dump_mb", static_cast<double>(truth.bytes) / 1e6},
                    {"slowest_s", slowest},
                    {"peak_mb", peak},
                    {"report_s", report},
                    {"report_peak_mb", peak_mb()},
                    {"report_mb", static_cast<double>(std::filesystem::file_size(page)) / 1e6},
                    {"first_finding", result["findings"].empty() ? Json() : result["findings"][0]["title"]}}
                   .dump()
            << "\n";
} catch (const std::exception& error) {
  std::cerr << "bench_analysis: " << describe(error) << "\n";
  return EXIT_FAILURE;
}
