// From the command to the end of the first step: `dtrain launch` of the synthetic example against torchrun + DDP with
// the same model, 2 ranks, alternating.
//
//   bench_startup [--json] [--runs 7]
//
// Ours ends where the step records of both ranks say that the first step ended, the peer where both ranks have read the
// clock after theirs; both are the system's monotonic clock. One start of each goes before, to fill the page cache.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace {

using namespace dtrain;

constexpr int kRanks = 2;
const std::filesystem::path kSource = DTRAIN_SOURCE_DIR;

// Starts `command`, waits for its end and returns when it was started.
std::int64_t run(const std::vector<std::string>& command, const std::filesystem::path& scratch) {
  const UniqueFd log(::open((scratch / "log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.command = command;
  options.environment = {{"DTRAIN_STATE_DIR", scratch / "state"}};
  options.fds = {{1, log.get()}, {2, log.get()}};
  const std::int64_t started = SystemClock().monotonic().count();
  Process process = Process::start(options);
  const auto status = process.wait(std::chrono::seconds(100));
  if (!status || !status->success()) {
    throw Error(command.front() + " failed", "it said:\n" + read_file(scratch / "log", 1 << 20));
  }
  return started;
}

std::int64_t end_of_first_step(const std::filesystem::path& dump) {
  std::ifstream lines(dump);
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record.value("record", "") != "step") continue;
    return record["start_ns"].get<std::int64_t>() + record["wall_ns"].get<std::int64_t>();
  }
  throw Error(dump.string() + " has no step");
}

double ours(const std::filesystem::path& scratch) {
  const auto folder = scratch / "run";
  std::filesystem::remove_all(folder);
  const std::int64_t started =
      run({executable_path().parent_path() / "dtrain", "launch", kSource / "configs/synthetic.yaml", "--set",
           "searcher.max_length.batches=2", "--run-dir", folder},
          scratch);
  std::int64_t ended = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ended = std::max(ended, end_of_first_step(folder / "profile" / ("rank-000" + std::to_string(rank) + ".jsonl")));
  }
  return static_cast<double>(ended - started) / 1e6;
}

double torchrun(const std::filesystem::path& scratch) {
  const std::string base = scratch / "ended-";
  const std::int64_t started = run({kSource / ".deps/peers/bin/torchrun", "--nproc-per-node", std::to_string(kRanks),
                                    kSource / "tests/bench/ddp_startup.py", base},
                                   scratch);
  std::int64_t ended = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::int64_t time = 0;
    std::ifstream(base + std::to_string(rank)) >> time;
    ended = std::max(ended, time);
  }
  if (ended == 0) throw Error("torchrun's ranks wrote no time to " + base + "*");
  return static_cast<double>(ended - started) / 1e6;
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  int runs = 7;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--runs" && i + 1 < argc) {
      runs = std::max(1, std::atoi(argv[++i]));
    } else {
      std::cerr << "usage: bench_startup [--json] [--runs N]\n";
      return 2;
    }
  }
  const bench::ScratchFolder scratch;
  ours(scratch.path());
  torchrun(scratch.path());
  std::vector<double> our_ms, torchrun_ms;
  for (int i = 0; i < runs; ++i) {
    our_ms.push_back(ours(scratch.path()));
    torchrun_ms.push_back(torchrun(scratch.path()));
  }
  const double us = bench::median_of(our_ms), peer = bench::median_of(torchrun_ms);
  const Json result = {{"ours_ms", us}, {"torchrun_ms", peer}, {"ratio", peer / us}};
  if (json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_startup: " << dtrain::describe(error) << "\n";
  return 1;
}
