#include "slow_link_runs.h"

#include <algorithm>
#include <fstream>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/epoch_order.h"

namespace dtrain::bench {
namespace {

constexpr int kRanks = 2;
constexpr int kSequence = 32;  // slow_link_models.LENGTH
constexpr std::int64_t kFashionSamples = 60'000;
const std::filesystem::path kSource = DTRAIN_SOURCE_DIR;
const std::string kPython = kSource / ".deps/peers/bin/python";

std::string data_of(const Workload& workload) {
  if (workload.name == "transformer") {
    return "{format: tokens, sequence_length: " + std::to_string(kSequence) +
           ", training: {file: training.tokens}, validation: {file: validation.tokens}}";
  }
  const auto part = [](const std::string& name) {
    const std::string base = "/usr/share/datasets/fashion-mnist/" + name;
    return "{features: " + base + "-images-idx3-ubyte.gz, target: " + base + "-labels-idx1-ubyte.gz}";
  };
  return "{format: idx, training: " + part("train") + ", validation: " + part("t10k") + "}";
}

double mean_of(const std::vector<double>& values, std::size_t from, std::size_t to) {
  double sum = 0;
  for (std::size_t i = from; i < to; ++i) sum += values[i];
  return sum / static_cast<double>(to - from);
}

}  // namespace

SlowLinkRuns::SlowLinkRuns(const std::vector<Workload>& workloads) {
  run_together({{kPython, kSource / "tests/bench/slow_link_models.py", scratch_.path()}}, scratch_.path(), false);
  for (const Workload& workload : workloads) {
    // The order in which dtrain takes the samples, for the peer.
    auto blocks = std::make_shared<data::BlockTable>(kFashionSamples, data::Blocks{});
    if (workload.name == "transformer") {
      const auto tokens = data::load_tokens(scratch_.path() / "training.tokens", data::TokenType::kUint16, kSequence);
      blocks = std::make_shared<data::BlockTable>(tokens->size(), tokens->blocks());
    }
    const data::Sampler sampler(blocks, {.batch_size = workload.batch * kRanks});
    std::ofstream file(scratch_.path() / (workload.name + ".order"), std::ios::binary);
    for (std::int64_t epoch = 0, batches = 0; batches < workload.steps; ++epoch, batches += sampler.batches_from(0)) {
      for (const std::int64_t sample : sampler.order(epoch).take(0, sampler.samples_per_epoch())) {
        file.write(reinterpret_cast<const char*>(&sample), sizeof sample);
      }
    }
  }
}

std::filesystem::path SlowLinkRuns::write_experiment(const Workload& workload, const Method& method,
                                                     const RunLength& length) {
  const auto file = scratch_.path() / "experiment.yaml";
  const std::string schedule =
      length.anneal ? ", lr_schedule: {kind: cosine, total_steps: " + std::to_string(length.steps) + "}" : "";
  std::ofstream(file) << "name: slow-link\nmodel: " << workload.name
                      << ".pt\nloss: cross_entropy\noptimizer: {kind: adamw, lr: 0.001" << schedule
                      << "}\nhyperparameters: {global_batch_size: " << workload.batch * kRanks
                      << "}\nresources: {slots_per_trial: " << kRanks << "}\noptimizations: {" << method.setting
                      << "}\nsearcher: {max_length: {batches: " << length.steps
                      << "}}\nmin_validation_period: {batches: " << length.period
                      << "}\nscheduling_unit: 1000000\ndata: " << data_of(workload) << "\n";
  return file;
}

void SlowLinkRuns::run_peer(const Workload& workload, const Method& method, const RunLength& length, bool on_link) {
  std::vector<std::vector<std::string>> commands;
  const std::string address = (on_link ? "10.71.1.1:" : "127.0.0.1:") + std::to_string(port_++);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<std::string> command{"env",
                                     on_link ? "GLOO_SOCKET_IFNAME=link0" : "GLOO_SOCKET_IFNAME=lo",
                                     kPython,
                                     kSource / "tests/bench/slow_link_ddp.py",
                                     workload.name,
                                     scratch_.path(),
                                     method.setting,
                                     std::to_string(rank),
                                     address,
                                     std::to_string(length.steps),
                                     std::to_string(length.period),
                                     length.anneal ? "cosine" : "constant",
                                     std::to_string(workload.batch),
                                     scratch_.path() / "peer.json"};
    commands.push_back(on_link ? hosts_.on(rank == 0 ? "a" : "b", std::move(command)) : std::move(command));
  }
  run_together(commands, scratch_.path(), true);
}

std::vector<Validation> SlowLinkRuns::curve(const Workload& workload, const Method& method, const RunLength& length) {
  std::vector<Validation> result;
  if (!method.ours) {
    run_peer(workload, method, length, false);
    const Json measured = read_json(scratch_.path() / "peer.json");
    for (const Json& v : measured["validation"]) result.push_back({v[0], v[1], v[2]});
    return result;
  }
  const auto folder = scratch_.path() / ("run" + std::to_string(runs_++));
  run_together({{program("dtrain"), "launch", write_experiment(workload, method, length), "--run-dir", folder}},
               scratch_.path(), false);
  std::ifstream lines(folder / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["kind"] != "validation") continue;
    const Json& metrics = record["metrics"];
    result.push_back({record["batch"], metrics["loss"], metrics["accuracy"]});
  }
  std::filesystem::remove_all(folder);
  return result;
}

void SlowLinkRuns::shape(const std::string& rate) {
  hosts_.shape(rate);
}

StepTimes SlowLinkRuns::step_times(const Workload& workload, const Method& method, int cycles) {
  // Behind the steps (or meetings) that go uncompressed to compare with: the last is the 15th step, the fifth meeting.
  const bool compared = method.ours && method.uncompressed_steps > 0;
  const int first = std::max(method.uncompressed_steps + 2,
                             method.cycle == 1 ? (compared ? 16 : 8) : (compared ? 5 : 2) * method.cycle);
  const int steps = first + cycles * method.cycle;
  const auto window = [&](const std::vector<double>& values) {
    if (values.size() < static_cast<std::size_t>(steps))
      throw Error(method.name + " made fewer steps than it was told");
    return mean_of(values, static_cast<std::size_t>(first), static_cast<std::size_t>(steps));
  };
  if (!method.ours) {
    run_peer(workload, method, {.steps = steps}, true);
    return {window(read_json(scratch_.path() / "peer.json")["step_ms"].get<std::vector<double>>()), 0, 0};
  }
  const auto folder = scratch_.path() / ("run" + std::to_string(runs_++));
  // One step more: what comes after the last one is counted with it.
  const std::string experiment = write_experiment(workload, method, {.steps = steps + 1});
  run_together({hosts_.mpirun({program("dtrain-worker"), experiment, "--run-dir", folder})}, scratch_.path(), false);
  std::vector<double> walls, computes;
  for (const Step& step : read_steps(folder, 0)) {
    walls.push_back(step.wall_ms);
    computes.push_back(step.wall_ms - step.exposed_ms);
  }
  const double bytes = read_json(folder / "plan.json")["model"]["bytes"].get<double>();
  std::filesystem::remove_all(folder);
  return {window(walls), window(computes), bytes};
}

}  // namespace dtrain::bench
