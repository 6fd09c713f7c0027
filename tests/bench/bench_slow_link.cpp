// Time to a fixed loss over a slow link: ours with each compression and with local steps, against
// DistributedDataParallel over gloo as it comes, with its fp16 hook and with its PowerSGD hook.
//
//   bench_slow_link [--json] [--workload transformer|fashion] [--rate 100mbit] [--final]   (both of each unless said)
//
// Two ranks on two hosts (network namespaces with own host name, processes and mounts) joined by a shaped link: needs
// root. Same models, initial weights, batches and optimizer. The steps to the loss come from a run without a link
// (it does not change what is computed), the time of a step from steps on the shaped link; compression's uncompressed
// first steps are counted as what they cost. Final accuracies are those of runs whose learning rate came down to 0
// along half a cosine: Fashion-MNIST's epoch, and for the transformer, with --final, longer runs (some minutes more).
// Progress goes to standard error.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "slow_link_runs.h"

namespace {

using namespace dtrain;
using bench::Method;
using bench::StepTimes;
using bench::Validation;
using bench::Workload;

// The transformer's runs to the loss are too short to compare final accuracies. Of Fashion-MNIST's 200 thousand
// gradients, a hundredth each step is too few for one epoch.
const std::vector<Workload> kWorkloads{{"transformer", 2, 800, 50, 50, 2.1, 0.01, 4000},
                                       {"fashion", 64, 468, 78, 39, 0.42, 0.1, 0}};
// These go on up to so many times final_steps. Local steps take more of them, each of which costs far less.
const std::vector<std::pair<std::string, int>> kGoOn{
    {"fp32", 1}, {"powersgd", 1}, {"local_int8", 1}, {"local_int8", 2}};
const std::map<std::string, double> kRates{{"100mbit", 100e6}, {"1gbit", 1e9}};  // bits a second
std::vector<Method> methods_for(const Workload& workload) {
  const int h = workload.inner_steps;
  char topk[96];
  std::snprintf(topk, sizeof topk, "gradient_compression: {kind: topk, ratio: %g}", workload.topk_ratio);
  // The mean of the ranks, without momentum: with so few meetings an outer momentum takes most of the run to pay.
  const std::string local = "local_sgd: {inner_steps: " + std::to_string(h) + ", outer_lr: 1, outer_momentum: 0";
  return {{"ddp", false, "none"},
          {"fp32", true, "sharded_optimizer: false"},  // or its first steps would try both
          {"ddp_fp16", false, "fp16"},
          {"fp16", true, "gradient_compression: fp16", 3},
          {"bf16", true, "gradient_compression: bf16", 3},
          {"int8", true, "gradient_compression: int8", 3},
          {"ddp_powersgd", false, "powersgd", 10},
          {"powersgd", true, "gradient_compression: {kind: powersgd, rank: 8, warmup_steps: 10}", 10},
          {"topk", true, topk, 3},
          {"local", true, local + "}", 0, h},
          {"local_int8", true, local + ", compression: int8}", 2, h}};
}

struct Row {
  std::vector<Validation> curve;
  int steps = 0;  // to the target; 0: not reached
  std::map<std::string, StepTimes> times;
};

int steps_to(const std::vector<Validation>& curve, double target) {
  for (const Validation& v : curve) {
    if (v.loss <= target) return v.step;
  }
  return 0;
}

double seconds_to_loss(const Method& method, const Row& row, const Row& uncompressed, const std::string& rate) {
  if (row.steps == 0) return std::nan("");
  const int whole = std::min(method.uncompressed_steps, row.steps);
  return (whole * uncompressed.times.at(rate).step_ms + (row.steps - whole) * row.times.at(rate).step_ms) / 1e3;
}

// Where longer runs end, and how long they would take over the slowest of the links.
Json go_on(bench::SlowLinkRuns& runs, const Workload& workload, const std::vector<Method>& methods,
           const std::map<std::string, Row>& rows, const std::string& rate) {
  Json table = Json::array();
  for (const auto& [name, times] : kGoOn) {
    const auto method = std::find_if(methods.begin(), methods.end(), [&](const Method& m) { return m.name == name; });
    const int steps = times * workload.final_steps;
    std::cerr << workload.name << ": " << name << ", " << steps << " steps" << std::endl;
    const Validation end = runs.curve(workload, *method, {steps, steps, /*anneal=*/true}).back();
    table.push_back({{"method", name},
                     {"steps", end.step},
                     {"seconds", end.step * rows.at(name).times.at(rate).step_ms / 1e3},
                     {"rate", rate},
                     {"final_loss", end.loss},
                     {"final_accuracy", end.accuracy}});
  }
  return table;
}

Json measure(bench::SlowLinkRuns& runs, const Workload& workload, const std::vector<std::string>& rates, bool final) {
  const auto methods = methods_for(workload);
  std::map<std::string, Row> rows;
  for (const Method& method : methods) {
    std::cerr << workload.name << ": " << method.name << ", losses" << std::endl;
    Row& row = rows[method.name];
    const bool anneal = workload.final_steps == 0;  // these runs are the longest
    row.curve = runs.curve(workload, method, {workload.steps, workload.period, anneal});
    row.steps = steps_to(row.curve, workload.target);
  }
  Json links = Json::array();
  for (const std::string& rate : rates) {
    runs.shape(rate);
    for (const Method& method : methods) {
      std::cerr << workload.name << ": " << method.name << " at " << rate << std::endl;
      rows[method.name].times[rate] = runs.step_times(workload, method, method.cycle > 1 ? 2 : 12);
    }
    Json table = Json::array();
    std::map<std::string, double> seconds;
    for (const Method& method : methods) {
      const Row& row = rows[method.name];
      seconds[method.name] = seconds_to_loss(method, row, rows[method.ours ? "fp32" : "ddp"], rate);
      table.push_back({{"method", method.name},
                       {"steps_to_loss", row.steps ? Json(row.steps) : Json()},
                       {"step_ms", row.times.at(rate).step_ms},
                       {"seconds_to_loss", row.steps ? Json(seconds[method.name]) : Json()},
                       {"final_loss", row.curve.back().loss},
                       {"final_accuracy", row.curve.back().accuracy}});
    }
    const double compute = rows["fp32"].times.at(rate).compute_ms;
    const double gradients = rows["fp32"].times.at(rate).model_bytes * 8 / kRates.at(rate) * 1e3;
    links.push_back({{"rate", rate},
                     {"compute_ms", compute},
                     {"gradients_ms", gradients},
                     {"gradients_over_compute", gradients / compute},
                     {"methods", table},
                     {"ddp_over_local_int8", seconds["ddp"] / seconds["local_int8"]},
                     {"ddp_powersgd_over_local_int8", seconds["ddp_powersgd"] / seconds["local_int8"]},
                     {"ddp_powersgd_over_powersgd", seconds["ddp_powersgd"] / seconds["powersgd"]}});
  }
  Json result{{"workload", workload.name}, {"target_loss", workload.target}, {"links", links}};
  if (final && workload.final_steps > 0) result["long_runs"] = go_on(runs, workload, methods, rows, rates.front());
  return result;
}

void print(const Json& result) {
  for (const Json& link : result["links"]) {
    std::printf("%s at %s: compute %.1f ms a step, gradients %.0f ms on the link (%.0fx)\n",
                result["workload"].get<std::string>().c_str(), link["rate"].get<std::string>().c_str(),
                link["compute_ms"].get<double>(), link["gradients_ms"].get<double>(),
                link["gradients_over_compute"].get<double>());
    std::printf("  %-14s %8s %10s %12s %10s %10s\n", "method", "steps", "step ms", "s to loss", "loss", "accuracy");
    for (const Json& row : link["methods"]) {
      std::printf("  %-14s %8s %10.2f %12s %10.3f %10.4f\n", row["method"].get<std::string>().c_str(),
                  row["steps_to_loss"].is_null() ? "never" : row["steps_to_loss"].dump().c_str(),
                  row["step_ms"].get<double>(),
                  row["seconds_to_loss"].is_null() ? "" : std::to_string(row["seconds_to_loss"].get<double>()).c_str(),
                  row["final_loss"].get<double>(), row["final_accuracy"].get<double>());
    }
  }
  for (const Json& row : result.value("long_runs", Json::array())) {
    std::printf("%s after %d steps, %.0f s at %s: %-14s loss %.3f, accuracy %.4f\n",
                result["workload"].get<std::string>().c_str(), row["steps"].get<int>(), row["seconds"].get<double>(),
                row["rate"].get<std::string>().c_str(), row["method"].get<std::string>().c_str(),
                row["final_loss"].get<double>(), row["final_accuracy"].get<double>());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false, final = false;
  std::vector<Workload> workloads;
  std::vector<std::string> rates;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const auto named = [&](const Workload& workload) { return workload.name == value; };
    const auto workload = std::find_if(kWorkloads.begin(), kWorkloads.end(), named);
    if (word == "--json") {
      json = true;
    } else if (word == "--final") {
      final = true;
    } else if (word == "--workload" && workload != kWorkloads.end()) {
      workloads.push_back(*workload);
      ++i;
    } else if (word == "--rate" && kRates.count(value)) {
      rates.push_back(value);
      ++i;
    } else {
      std::cerr
          << "usage: bench_slow_link [--json] [--workload transformer|fashion] [--rate 100mbit|1gbit] [--final]\n";
      return 2;
    }
  }
  if (workloads.empty()) workloads = kWorkloads;
  if (rates.empty()) rates = {"100mbit", "1gbit"};
  if (::geteuid() != 0) {
    std::cerr << "bench_slow_link: two hosts in network namespaces and a shaped link need root\n";
    return 2;
  }
  bench::SlowLinkRuns runs(workloads);
  Json results = Json::array();
  for (const Workload& workload : workloads) results.push_back(measure(runs, workload, rates, final));
  if (json) {
    std::cout << to_line(results) << "\n";
  } else {
    for (const Json& result : results) print(result);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_slow_link: " << dtrain::describe(error) << "\n";
  return 1;
}
