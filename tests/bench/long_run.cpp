#include "long_run.h"

#include <fcntl.h>

#include <cstdio>
#include <fstream>

#include "../harness/sketch_json.h"
#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {
namespace {

constexpr int kRanks = 2;

std::filesystem::path program_beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

void launch(const std::filesystem::path& scratch, std::int64_t steps) {
  std::ofstream(scratch / "experiment.yaml")
      << "name: long-run\nentrypoint: synthetic\nhyperparameters: {global_batch_size: 16, features: 8, width: 16, "
         "depth: "
         "2, classes: 4, learning_rate: 0.01}\nresources: {slots_per_trial: "
      << kRanks << "}\nsearcher: {max_length: {batches: " << steps << "}}\ndata: {samples: 20000}\n";
  const UniqueFd log(::open((scratch / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.command = {program_beside("dtrain").string(), "launch", (scratch / "experiment.yaml").string(), "--run-dir",
                     (scratch / "run").string()};
  options.fds = {{1, log.get()}, {2, log.get()}};
  const ExitStatus status = Process::start(options).wait();
  if (!status.success()) throw Error("the run failed: " + status.describe());
}

struct RankDump {
  std::uintmax_t bytes = 0, bytes_in_full = 0;  // the latter: of the steps before the first window
  std::int64_t steps = 0, windows = 0, outliers = 0, folded = 0;
  profile::Sketch wall_ns;
};

RankDump read(const std::filesystem::path& path) {
  RankDump dump;
  dump.bytes = std::filesystem::file_size(path);
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    const std::string kind = record["record"];
    if (kind == "step") {
      ++dump.steps;
      dump.wall_ns.add(record["wall_ns"].get<std::int64_t>());
    }
    if (dump.windows == 0 && (!record.contains("batch") || record["batch"] <= 10'000))
      dump.bytes_in_full += line.size();
    if (kind != "window") continue;
    ++dump.windows;
    dump.steps += record["steps"].get<std::int64_t>();
    dump.outliers += record["outliers"].get<std::int64_t>();
    dump.folded += record["outliers_folded"].get<std::int64_t>();
    dump.wall_ns.merge(profile::sketch_of_json(record["wall_ns"]).value());
  }
  return dump;
}

}  // namespace

Json long_run(const std::filesystem::path& scratch, std::int64_t steps) {
  const SystemClock clock;
  const Nanoseconds start = clock.monotonic();
  launch(scratch, steps);
  Json result = {{"steps", steps}, {"seconds", to_seconds(clock.monotonic() - start)}, {"ranks", Json::array()}};
  std::uintmax_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "run" / "profile")) total += entry.file_size();
  for (int rank = 0; rank < kRanks; ++rank) {
    char name[32];
    std::snprintf(name, sizeof name, "rank-%04d.jsonl", rank);
    const RankDump dump = read(scratch / "run" / "profile" / name);
    if (dump.steps != steps) {
      throw Error("rank " + std::to_string(rank) + " made " + std::to_string(steps) + " steps, its dump has " +
                  std::to_string(dump.steps));
    }
    result["ranks"].push_back(
        {{"bytes", dump.bytes},
         {"bytes_if_all_in_full", dump.bytes_in_full * static_cast<std::uint64_t>(steps) / 10'000},
         {"windows", dump.windows},
         {"outliers", dump.outliers},
         {"outliers_folded", dump.folded},
         {"median_us", dump.wall_ns.quantile(0.5) / 1e3},
         {"p99_us", dump.wall_ns.quantile(0.99) / 1e3}});
  }
  result["profile_bytes"] = total;
  return result;
}

}  // namespace dtrain::bench
