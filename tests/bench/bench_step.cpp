// How long one step takes: ours against DistributedDataParallel over gloo, and against compute alone.
//
//   bench_step [--json] [--seconds 45] [--width 2048] [--depth 6] [--batch 32]
//
// Two ranks, one thread each, bound to a core each. The contestants are alive at once and take turns, a few steps each,
// so that what the machine does meanwhile hits all of them alike:
//   ours        `dtrain launch` of bench_step_trial, replicated strategy, records on, fused AdamW
//   sharded     the same with the sharded strategy: one copy of parameters and optimizer state
//   ddp         the same model under Python's DDP over gloo, AdamW as it comes
//   ddp_fused   the same with AdamW(fused=True)
//   compute     bench_step_trial as two separate runs of one rank at the same time: forward, backward and optimizer
//               with both cores busy and no communication
// All use the same libtorch version and so the same sgemm. Prints medians over steps in milliseconds, and the memory of
// our ranks together, in which shared pages count once (PSS).
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu.h"

namespace {

using namespace dtrain;
using bench::Contestant;

struct Settings {
  bool json = false;
  int seconds = 45;  // of measuring, start-up included
  int width = 2048;
  int depth = 6;
  int batch = 32;  // of a rank
};

Settings parse(int argc, char** argv) {
  Settings settings;
  const std::map<std::string, int*> numbers{{"--seconds", &settings.seconds},
                                            {"--width", &settings.width},
                                            {"--depth", &settings.depth},
                                            {"--batch", &settings.batch}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      settings.json = true;
    } else if (const auto number = numbers.find(word); number != numbers.end() && i + 1 < argc) {
      *number->second = std::atoi(argv[++i]);
    } else {
      std::cerr << "usage: bench_step [--json] [--seconds N] [--width N] [--depth N] [--batch N of a rank]\n";
      std::exit(2);
    }
  }
  return settings;
}

std::filesystem::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

void write_experiment(const std::filesystem::path& path, const Settings& settings, int slots, const std::string& fifo,
                      bool sharded = false) {
  std::ofstream(path) << "name: bench-step\nentrypoint: " << beside("bench_step_trial").string()
                      << "\nhyperparameters: {global_batch_size: " << settings.batch * slots
                      << ", width: " << settings.width << ", depth: " << settings.depth
                      << "}\nresources: {slots_per_trial: " << slots
                      << "}\noptimizations: {sharded_optimizer: " << (sharded ? "true" : "false")
                      << "}\nsearcher: {max_length: {batches: 1000000}}\ndata: {fifo: \"" << fifo << "\"}\n";
}

// Of the ranks of a run, megabytes; a page that several of them map counts once.
double memory_of(const std::filesystem::path& run_dir) {
  double kilobytes = 0;
  std::ifstream events(run_dir / "events.jsonl");
  for (std::string line; std::getline(events, line);) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("event", "") != "rank_started") continue;
    std::ifstream rollup("/proc/" + std::to_string(event.at("pid").get<int>()) + "/smaps_rollup");
    for (std::string word; rollup >> word;) {
      double value = 0;
      if (word == "Pss:" && rollup >> value) kilobytes += value;
    }
  }
  return kilobytes * 1024 / 1e6;
}

class Run {
 public:
  explicit Run(const Settings& settings) : settings_(settings), cpus_(host::allowed_cpus()) {
    if (cpus_.size() < 2) throw Error("bench_step needs two cores", "give the machine or the container two");
  }

  Json measure() {
    start_all();
    // The first steps of each contestant load code, fill caches and grow heaps.
    for (const char* name : {"ours", "sharded", "ddp", "ddp_fused", "compute"}) take_turn(name, 3, nullptr);
    std::map<std::string, std::vector<double>> times;
    const Nanoseconds end = started_ + std::chrono::seconds(settings_.seconds);
    while (clock_.monotonic() < end || times["ours"].size() < 8) {
      for (const char* name : {"ours", "compute", "sharded", "ddp", "ddp_fused"}) take_turn(name, 4, &times[name]);
    }
    const double replicated_mb = memory_of(scratch_.path() / "ours");
    const double sharded_mb = memory_of(scratch_.path() / "sharded");
    ours_.end("0");
    sharded_.end("0");
    compute_.end("0");
    ddp_.end("end");
    for (Process& process : processes_) process.wait(std::chrono::seconds(10));
    const double ours = bench::median_of(times["ours"]);
    const double sharded = bench::median_of(times["sharded"]);
    const double ddp = bench::median_of(times["ddp"]);
    const double fused = bench::median_of(times["ddp_fused"]);
    const double compute = bench::median_of(times["compute"]);
    return {{"ours_ms", ours},
            {"ddp_ms", ddp},
            {"ddp_fused_ms", fused},
            {"compute_ms", compute},
            {"ddp_ratio", ddp / ours},
            {"ddp_fused_ratio", fused / ours},
            {"not_compute_share", 1 - compute / ours},
            {"sharded_ms", sharded},
            {"sharded_ddp_ratio", ddp / sharded},
            {"sharded_ddp_fused_ratio", fused / sharded},
            {"memory_mb", replicated_mb},
            {"sharded_memory_mb", sharded_mb},
            {"steps", times["ours"].size()}};
  }

 private:
  void start(std::vector<std::string> command, std::vector<int> cpus) {
    ProcessOptions options;
    options.command = std::move(command);
    options.environment = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}};
    // The contestants take turns; none of them is to queue behind another.
    options.environment["DTRAIN_STATE_DIR"] = scratch_.path() / ("state" + std::to_string(processes_.size()));
    options.cpus = std::move(cpus);
    options.working_folder = scratch_.path();
    // What they say goes to a file: it says why, when something fails.
    log_ = (scratch_.path() / "log").string();
    static_cast<void>(std::ofstream(log_, std::ios::app));
    const int fd = ::open(log_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    logs_.emplace_back(fd);
    options.fds = {{1, fd}, {2, fd}};
    processes_.push_back(Process::start(options));
  }

  void start_all() {
    const auto folder = scratch_.path();
    for (const char* name : {"ours", "sharded"}) {
      const bool sharded = std::strcmp(name, "sharded") == 0;
      const auto file = folder / (std::string(name) + ".yaml");
      write_experiment(file, settings_, 2, (sharded ? sharded_ : ours_).base(), sharded);
      start({beside("dtrain").string(), "launch", file.string(), "--run-dir", (folder / name).string()}, {});
    }
    for (int rank = 0; rank < 2; ++rank) {
      // Each is rank 0 of its own world; the FIFO's number tells the two apart.
      const std::string name = "compute" + std::to_string(rank);
      write_experiment(folder / (name + ".yaml"), settings_, 1, compute_.give_own_world(rank));
      start({beside("bench_step_trial").string(), (folder / (name + ".yaml")).string(), "--run-dir",
             (folder / name).string()},
            {cpus_[static_cast<std::size_t>(rank)]});
      start({DTRAIN_SOURCE_DIR "/.deps/peers/bin/python", DTRAIN_SOURCE_DIR "/tests/bench/ddp_step.py",
             std::to_string(rank), "2", (folder / "store").string(), ddp_.base(), std::to_string(settings_.batch),
             std::to_string(settings_.width), std::to_string(settings_.depth)},
            {cpus_[static_cast<std::size_t>(rank)]});
    }
  }

  void take_turn(const std::string& name, int steps, std::vector<double>* times) {
    std::vector<std::int64_t> taken;
    try {
      taken = name == "ours"      ? ours_.steps(steps)
              : name == "sharded" ? sharded_.steps(steps)
              : name == "compute" ? compute_.steps(steps)
                                  : ddp_.steps(steps, name == "ddp" ? "default" : "fused");
    } catch (...) {
      bench::show_log(log_);
      throw;
    }
    if (times) {
      for (const std::int64_t time : taken) times->push_back(static_cast<double>(time) / 1e6);
    }
  }

  Settings settings_;
  std::vector<int> cpus_;
  SystemClock clock_;
  Nanoseconds started_ = clock_.monotonic();
  bench::ScratchFolder scratch_;
  std::string log_;
  std::vector<UniqueFd> logs_;
  Contestant ours_{(scratch_.path() / "ours-").string(), 2};
  Contestant sharded_{(scratch_.path() / "sharded-").string(), 2};
  Contestant compute_{(scratch_.path() / "compute-").string(), 2};
  Contestant ddp_{(scratch_.path() / "ddp-").string(), 2};
  std::vector<Process> processes_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  const Json result = Run(settings).measure();
  if (settings.json) {
    std::cout << to_line(result) << "\n";
    return 0;
  }
  for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_step: " << dtrain::describe(error) << "\n";
  return 1;
}
