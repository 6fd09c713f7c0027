// What tuning the fusion plan gains where the link is slow, that it costs nothing where it is fast, and how much of a
// step's communication hides behind backward.
//
//   bench_tuner [--json] [--only link|shm|overlap]
//
//   link     many narrow layers over 1 Gbit/s, all_reduce about as long as backward: exposed communication of a step by
//            default and as tuned, runs in turns
//   shm      the same model on one host, ten times: a step as tuned against the steps of a run by default before it and
//            one after it, and how far those two are apart: that is noise
//   overlap  24 layers over 100 Mbit/s, all_reduce 0.5 to 0.9 of backward: a step against one without communication
//            (both ranks computing at once, each a run of its own), in turns
// `link` and `overlap` need root: two hosts in network namespaces.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

#include <unistd.h>

#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "hosts.h"
#include "overlap.h"

namespace {

using namespace dtrain;
namespace fs = std::filesystem;

struct Model {
  int width = 0, depth = 0;
  int batch = 0;  // of a rank
};
// Layers so small that gradients follow each other much faster than the default's cycle time, also on a busy machine,
// but not so many that those of the first layers become denormal numbers, which are slow. Its batch is such that
// backward takes about as long as all_reduce at 1 Gbit/s.
constexpr Model kNarrow{96, 64, 800};
constexpr bench::OverlapModel kDeep{224, 24, 9500};
// While strategies take turns, steps are not alike.
constexpr const char* kOneStrategy = "sharded_optimizer: false";
constexpr const char* kTuned = "sharded_optimizer: false, auto_tune_tensor_fusion: true";
constexpr int kTuning = 110;  // steps that surely suffice

class Bench {
 public:
  Json link() {
    hosts_.shape("1gbit");
    forget();
    const Json tuning = tuning_event(on_two_hosts(kNarrow, kTuned, kTuning));  // it remembers
    struct Side {
      std::vector<double> exposed, step;
      Json fusion;  // plan.json's
    } by_default, tuned;
    const auto run = [&](Side& side, const char* optimizations) {
      const fs::path folder = on_two_hosts(kNarrow, optimizations, 40);
      side.exposed.push_back(middle(folder, 12, [](const bench::Step& s) { return s.exposed_ms; }));
      side.step.push_back(middle(folder, 12, [](const bench::Step& s) { return s.wall_ms; }));
      side.fusion = read_json(folder / "plan.json")["fusion"];
    };
    for (int turn = 0; turn < 3; ++turn) {
      run(by_default, kOneStrategy);
      run(tuned, kTuned);
    }
    const double before = bench::median_of(by_default.exposed), after = bench::median_of(tuned.exposed);
    const double backward = middle(last_, 12, [](const bench::Step& s) { return s.backward_ms; });
    return {{"default_exposed_ms", before},
            {"tuned_exposed_ms", after},
            {"saved", 1 - after / before},
            {"default_step_ms", bench::median_of(by_default.step)},
            {"tuned_step_ms", bench::median_of(tuned.step)},
            {"all_reduce_ms", all_reduce_ms(1e9)},
            {"backward_ms", backward},
            {"all_reduce_over_backward", all_reduce_ms(1e9) / backward},
            {"tuning_steps", tuning["steps"]},
            {"default_buckets", by_default.fusion["buckets"].size()},
            {"buckets", tuned.fusion["buckets"].size()},
            {"plan_by", tuned.fusion["by"]}};
  }

  Json shm() {
    std::vector<double> ratios, noise;
    int changed = 0;
    const auto run = [&](const char* optimizations) {
      return middle(on_one_host(optimizations, 60), 12, [](const bench::Step& s) { return s.wall_ms; });
    };
    for (int turn = 0; turn < 10; ++turn) {
      forget();
      const Json tuning = tuning_event(on_one_host(kTuned, kTuning));
      changed += tuning["buckets"] != tuning["default_buckets"] ? 1 : 0;
      const double before = run(kOneStrategy), tuned = run(kTuned), after = run(kOneStrategy);
      ratios.push_back(tuned / ((before + after) / 2));
      noise.push_back(std::max(before, after) / std::min(before, after) - 1);
    }
    return {{"tuned_over_default", bench::median_of(ratios)},
            {"worst", *std::max_element(ratios.begin(), ratios.end())},
            {"noise", bench::median_of(noise)},
            {"worst_noise", *std::max_element(noise.begin(), noise.end())},
            {"runs", ratios.size()},
            {"other_plans", changed}};
  }

  Json overlap() {
    hosts_.shape("100mbit");
    return bench::measure_overlap(hosts_, scratch_.path(), kDeep, 100e6, 60);
  }

 private:
  void forget() { fs::remove_all(cache_); }

  fs::path write(const Model& model, int ranks, const std::string& optimizations, int steps) {
    const fs::path file = scratch_.path() / ("experiment" + std::to_string(ranks) + ".yaml");
    const std::string inside = optimizations == "{}" ? optimizations : "{" + optimizations + "}";
    std::ofstream(file) << "name: bench-tuner\nentrypoint: " << bench::program("synthetic")
                        << "\nhyperparameters: {global_batch_size: " << model.batch * ranks
                        << ", width: " << model.width << ", depth: " << model.depth
                        << "}\nresources: {slots_per_trial: " << ranks << "}\noptimizations: " << inside
                        << "\nsearcher: {max_length: {batches: " << steps
                        << "}}\nscheduling_unit: 1000000\ndata: {samples: " << 3 * model.batch * ranks << "}\n";
    return file;
  }

  fs::path next_run() {
    if (!last_.empty()) fs::remove_all(last_);
    return last_ = scratch_.path() / ("run" + std::to_string(runs_++));
  }

  fs::path on_two_hosts(const Model& model, const std::string& optimizations, int steps) {
    const fs::path file = write(model, 2, optimizations, steps);
    const fs::path run = next_run();
    bench::run_together({hosts_.mpirun({bench::program("synthetic"), file, "--run-dir", run})}, scratch_.path(), false,
                        {{"XDG_CACHE_HOME", cache_}});
    return run;
  }

  fs::path on_one_host(const std::string& optimizations, int steps) {
    const fs::path file = write(kNarrow, 2, optimizations, steps);
    const fs::path run = next_run();
    bench::run_together({{bench::program("dtrain"), "launch", file, "--run-dir", run}}, scratch_.path(), false,
                        {{"XDG_CACHE_HOME", cache_}});
    return run;
  }

  // What the tuner said in the end.
  Json tuning_event(const fs::path& run) {
    std::ifstream lines(run / "events.jsonl");
    for (std::string line; std::getline(lines, line);) {
      Json event = Json::parse(line);
      if (event["event"] == "fusion_tuned") return event;
    }
    throw Error("the tuner did not end within " + std::to_string(kTuning) + " steps");
  }

  // Of both ranks' steps after the first `skip`, without the last one, which ends the run.
  template <typename Value>
  double middle(const fs::path& run, int skip, const Value& value) {
    std::vector<double> values;
    for (const int rank : {0, 1}) {
      const auto steps = bench::read_steps(run, rank);
      for (std::size_t i = static_cast<std::size_t>(skip); i + 1 < steps.size(); ++i) values.push_back(value(steps[i]));
    }
    return bench::median_of(values);
  }

  // What the last run's gradients need on a link of so many bits a second: with two ranks each sends all of them once.
  double all_reduce_ms(double bits_per_second) {
    return read_json(last_ / "plan.json")["model"]["bytes"].get<double>() * 8 / bits_per_second * 1e3;
  }

  bench::ScratchFolder scratch_;
  bench::TwoHosts hosts_{scratch_.path() / "hosts"};
  const fs::path cache_ = scratch_.path() / "cache";
  fs::path last_;
  int runs_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--json") {
      json = true;
    } else if (word == "--only" && (value == "link" || value == "shm" || value == "overlap")) {
      only = argv[++i];
    } else {
      std::cerr << "usage: bench_tuner [--json] [--only link|shm|overlap]\n";
      return 2;
    }
  }
  if (only != "shm" && ::geteuid() != 0) {
    std::cerr << "bench_tuner: two hosts in network namespaces and a shaped link need root; --only shm does not\n";
    return 2;
  }
  Bench bench;
  Json result = Json::object();
  if (only.empty() || only == "link") result["link"] = bench.link();
  if (only.empty() || only == "overlap") result["overlap"] = bench.overlap();
  if (only.empty() || only == "shm") result["shm"] = bench.shm();
  if (json) {
    std::cout << to_line(result) << "\n";
    return 0;
  }
  for (const auto& [part, values] : result.items()) {
    for (const auto& [name, value] : values.items()) std::cout << part << "." << name << " " << value << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_tuner: " << dtrain::describe(error) << "\n";
  return 1;
}
