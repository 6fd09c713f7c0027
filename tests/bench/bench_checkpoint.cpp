// What checkpoints cost training: ours, torch.save() and torch.distributed.checkpoint.async_save().
//
//   bench_checkpoint [--json] [--quick] [--seconds 210] [--folder .] [--width 2048] [--depth 8] [--batch 32]
//
// Two ranks, one thread each, bound to a core each: an MLP of 33M parameters with fused AdamW, whose training state has
// 400 MB. The contestants are alive at once and take turns of 40 steps, which have one checkpoint each
// (checkpoint_turn.h): ours under `dtrain launch` with min_checkpoint_period 40, and the two peers under DDP over gloo.
// Between turns everything written is brought to the disk, so that no contestant pays for another. Then SIGTERM stops
// our run in full training, and once more a second run while its saver writes.
//
// The checkpoints lie in a new folder under --folder, which goes at the end; a file system in memory is refused.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checkpoint_turn.h"
#include "checkpointed_run.h"
#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu.h"
#include "write_speed.h"

namespace {

using namespace dtrain;
using namespace dtrain::bench;

struct Settings {
  bool json = false;
  bool quick = false;
  int seconds = 210;  // of turns
  CheckpointedModel model;
  std::filesystem::path folder = ".";
};

constexpr const char* kUsage =
    "usage: bench_checkpoint [--json] [--quick] [--seconds N] [--folder FOLDER] [--width N] [--depth N]\n"
    "                        [--batch N of a rank]\n"
    "  --quick    three turns of ours, one of each peer, one stop: under a minute on an idle machine\n"
    "  --seconds  how long the contestants take turns (210)\n"
    "  --folder   where the checkpoints go, on the disk to be measured (the current folder)\n";

Settings parse(int argc, char** argv) {
  Settings settings;
  const std::map<std::string, int*> numbers{{"--seconds", &settings.seconds},
                                            {"--width", &settings.model.width},
                                            {"--depth", &settings.model.depth},
                                            {"--batch", &settings.model.batch}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = numbers.find(word);
    if (word == "--json") {
      settings.json = true;
    } else if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--folder" && i + 1 < argc) {
      settings.folder = argv[++i];
    } else if (number != numbers.end() && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      *number->second = std::atoi(argv[++i]);
    } else {
      (word == "--help" ? std::cout : std::cerr) << kUsage;
      std::exit(word == "--help" ? 0 : 2);
    }
  }
  return settings;
}

std::filesystem::path folder_on_disk(const std::filesystem::path& folder) {
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) throw SystemError("look at the folder " + folder.string(), errno);
  if (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC) {
    throw Error(folder.string() + " is a file system in memory", "name a folder on a disk with --folder");
  }
  return std::filesystem::absolute(folder);
}

struct Turn {
  std::vector<std::int64_t> times_ns;
  int steps_until_durable = 0;
  double durable_s = 0;
};

class Turns {
 public:
  explicit Turns(const Settings& settings)
      : settings_(settings),
        scratch_(folder_on_disk(settings.folder)),
        ours_(settings.model, scratch_.path() / "ours", kTurnSteps),
        ddp_((scratch_.path() / "ddp-").string(), 2),
        folder_(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

  Json measure() {
    try {
      return take_turns();
    } catch (...) {
      ours_.show_log();
      show_log(scratch_.path() / "ddp.log");
      throw;
    }
  }

 private:
  void start_ddp() {
    const auto cpus = host::allowed_cpus();
    if (cpus.size() < 2) throw Error("bench_checkpoint needs two cores", "give the machine or the container two");
    std::filesystem::create_directory(scratch_.path() / "ddp");
    log_.reset(::open((scratch_.path() / "ddp.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    for (int rank = 0; rank < 2; ++rank) {
      ProcessOptions options;
      options.command = {DTRAIN_SOURCE_DIR "/.deps/peers/bin/python",
                         "-B",
                         DTRAIN_SOURCE_DIR "/tests/bench/checkpoint_ddp.py",
                         std::to_string(rank),
                         "2",
                         (scratch_.path() / "store").string(),
                         ddp_.base(),
                         std::to_string(settings_.model.batch),
                         std::to_string(settings_.model.width),
                         std::to_string(settings_.model.depth),
                         (scratch_.path() / "ddp").string(),
                         std::to_string(kCheckpointStep)};
      options.environment = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}};
      options.cpus = {cpus[static_cast<std::size_t>(rank)]};
      options.fds = {{1, log_.get()}, {2, log_.get()}};
      processes_.push_back(Process::start(options));
    }
  }

  Json take_turns() {
    start_ddp();
    ours_.steps(static_cast<int>(checkpoint_of(0)) - kCheckpointStep - 1);
    ddp_.steps(4, "plain");
    const Nanoseconds begin = clock_.monotonic();
    std::vector<std::vector<std::int64_t>> ours, save, async;
    std::vector<double> disk_gb_s{disk_gb_s_now()};
    const auto is_over = [&] {
      const Nanoseconds passed = clock_.monotonic() - begin;
      return settings_.quick ? ours.size() >= 3 : passed >= std::chrono::seconds(settings_.seconds) && ours.size() >= 2;
    };
    while (!is_over()) {
      ours.push_back(take_turn([&] { return turn_of_ours(ours.size()); }));
      if (settings_.quick && ours.size() > 1) continue;
      save.push_back(take_turn([&] { return ddp_.steps(kTurnSteps, "save"); }));
      ours.push_back(take_turn([&] { return turn_of_ours(ours.size()); }));
      async.push_back(take_turn([&] { return ddp_.steps(kTurnSteps, "async"); }));
      if (ours.size() <= 2) disk_gb_s.push_back(disk_gb_s_now());
    }
    ddp_.end("end");
    for (Process& process : processes_) process.wait(std::chrono::seconds(10));
    Json result = stalls_of_ours(ours);
    add_peer(result, "torch_save", "save", save);
    add_peer(result, "dcp", "async", async);
    result["disk_gb_s"] = *std::max_element(disk_gb_s.begin(), disk_gb_s.end());
    try {
      stop(result);
      result["write_share"] = result["write_gb_s"].get<double>() / result["disk_gb_s"].get<double>();
    } catch (const Error& error) {
      result["stop_error"] = describe(error);  // the other figures hold all the same
    }
    return result;
  }

  std::vector<std::int64_t> take_turn(const std::function<std::vector<std::int64_t>()>& steps) {
    auto times = steps();
    if (::syncfs(folder_.get()) != 0) throw SystemError("synchronise " + scratch_.path().string(), errno);
    return times;
  }

  std::vector<std::int64_t> turn_of_ours(std::size_t number) {
    const auto displaced_before = ours_.displaced();
    auto times = ours_.steps(kTurnSteps);
    const Nanoseconds now = clock_.wall();
    const auto displaced = ours_.displaced();
    for (std::size_t rank = 0; rank < displaced.size(); ++rank) {
      const auto all = static_cast<double>(std::accumulate(times.begin(), times.end(), std::int64_t{0}));
      const auto waited = static_cast<double>((displaced[rank] - displaced_before[rank]).count());
      displaced_share_ = std::max(displaced_share_, waited / all);
    }
    const Nanoseconds behind(std::accumulate(times.begin() + kCheckpointStep + 1, times.end(), std::int64_t{0}));
    const auto durable = ours_.renamed_at(checkpoint_of(number));
    if (!durable) {
      throw Error("the checkpoint of step " + std::to_string(checkpoint_of(number)) + " was not written in its turn",
                  "name a folder on a faster disk with --folder");
    }
    durable_s_.push_back(to_seconds(*durable - (now - behind)));
    return times;
  }

  // The batch after which turn `number` has its checkpoint.
  static std::int64_t checkpoint_of(std::size_t number) { return static_cast<std::int64_t>(number + 1) * kTurnSteps; }

  double disk_gb_s_now() { return write_speed_gb_s(scratch_.path() / "dd", settings_.model.state_bytes()); }

  Json stalls_of_ours(const std::vector<std::vector<std::int64_t>>& times) {
    const std::vector<Json> saved = ours_.events("checkpoint_saved");
    std::vector<Turn> turns;
    std::vector<double> training_gb_s, copy_ms;
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (i >= saved.size() || saved[i]["step"] != checkpoint_of(i)) {
        throw Error("there is no event of the checkpoint of step " + std::to_string(checkpoint_of(i)));
      }
      const Json& event = saved[i];
      // One step more: then older checkpoints are deleted.
      turns.push_back({times[i], steps_begun_within(times[i], durable_s_[i]) + 1, durable_s_[i]});
      training_gb_s.push_back(write_speed(event));
      copy_ms.push_back(event["copy_s"].get<double>() * 1e3);
    }
    Json result;
    add(result, "", turns);
    result["first_longest_ms"] = measure_turn(turns[0].times_ns, turns[0].steps_until_durable).longest_ms;
    result["copy_ms"] = median_of(copy_ms);
    result["training_write_gb_s"] = median_of(training_gb_s);
    result["bytes"] = saved.front()["bytes"];
    result["checkpoints"] = times.size();
    result["displaced_share"] = displaced_share_;
    return result;
  }

  // The peer's own account of how long its checkpoints took.
  void add_peer(Json& result, const std::string& name, const std::string& kind,
                const std::vector<std::vector<std::int64_t>>& times) {
    std::vector<Turn> turns;
    std::ifstream file(scratch_.path() / "ddp" / "checkpoints.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json checkpoint = Json::parse(line);
      if (checkpoint["kind"] != kind || turns.size() == times.size()) continue;
      turns.push_back({times[turns.size()], checkpoint["until"].get<int>(), checkpoint["seconds"].get<double>()});
    }
    add(result, name + "_", turns);
  }

  static void add(Json& result, const std::string& prefix, const std::vector<Turn>& turns) {
    std::vector<TurnResult> results;
    std::map<std::string, std::vector<double>> values;
    for (const Turn& turn : turns) {
      const TurnResult& one = results.emplace_back(measure_turn(turn.times_ns, turn.steps_until_durable));
      values["step_ms"].push_back(one.quiet_ms);
      values["checkpoint_step_ms"].push_back(one.excess_ms.front());
      values["longest_ms"].push_back(one.longest_ms);
      values["longest_noise_ms"].push_back(one.longest_noise_ms);
      values["cost"].push_back(one.cost);
      values["durable_s"].push_back(turn.durable_s);
    }
    const std::vector<double> excess = excess_by_place(results), noise = noise_by_place(results);
    result[prefix + "stall_ms"] = *std::max_element(excess.begin(), excess.end());
    result[prefix + "noise_ms"] = *std::max_element(noise.begin(), noise.end());
    result[prefix + "by_place_ms"] = excess;
    for (const char* name : {"step_ms", "checkpoint_step_ms", "longest_ms", "longest_noise_ms", "durable_s"}) {
      result[prefix + name] = median_of(values[name]);
    }
    result[prefix.empty() ? "loop_cost" : prefix + "cost"] = median_of(values["cost"]);
  }

  static double write_speed(const Json& saved) {
    return saved["bytes"].get<double>() / saved["write_s"].get<double>() / 1e9;
  }

  // The checkpoint of a stop is written while no rank trains, as the file of dd is.
  void stop(Json& result) {
    result["stop_idle_s"] = ours_.stop_in_training();
    result["write_gb_s"] = write_speed(ours_.events("checkpoint_saved").back());
    if (!settings_.quick) {
      CheckpointedRun second(settings_.model, scratch_.path() / "second", kTurnSteps);
      try {
        result["stop_saving_s"] = second.stop_while_saving();
      } catch (...) {
        second.show_log();
        throw;
      }
    }
    result["stop_s"] = std::max(result["stop_idle_s"].get<double>(), result.value("stop_saving_s", 0.0));
  }

  const Settings settings_;
  SystemClock clock_;
  ScratchFolder scratch_;
  CheckpointedRun ours_;
  Contestant ddp_;
  UniqueFd folder_, log_;
  std::vector<double> durable_s_;  // of ours, from the end of the checkpoint's step
  double displaced_share_ = 0;
  std::vector<Process> processes_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  Json result = Turns(settings).measure();
  // The names by which the goals are written.
  result["torch_save_ms"] = result["torch_save_stall_ms"];
  result.erase("torch_save_stall_ms");
  if (settings.json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return result.contains("stop_error") ? 1 : 0;
} catch (const std::exception& error) {
  std::cerr << "bench_checkpoint: " << dtrain::describe(error) << "\n";
  return 1;
}
