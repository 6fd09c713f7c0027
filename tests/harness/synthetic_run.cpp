#include "harness/synthetic_run.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include <spdlog/fmt/compile.h>
#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "synthetic_rank.h"

namespace dtrain::test {
namespace {

using profile::Phase;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSamplePeriod = 500 * kMs;

std::int64_t& phase(SyntheticStep& step, Phase which) {
  return step.own_ns[static_cast<std::size_t>(which)];
}

SyntheticStep ordinary_step(double slower) {
  SyntheticStep step;
  phase(step, Phase::kDataloaderNext) = kMs / 5;
  phase(step, Phase::kForward) = std::llround(3 * kMs * slower);
  phase(step, Phase::kBackward) = std::llround(6 * kMs * slower);
  phase(step, Phase::kOptimizerStep) = kMs;
  phase(step, Phase::kOther) = kMs / 10;
  step.exchange_ns = kMs / 2;
  return step;
}

bool is_after_exchange(Phase phase) {
  return phase == Phase::kOptimizerStep || phase == Phase::kStepLrSchedulers || phase == Phase::kFromDevice ||
         phase == Phase::kReduceMetrics || phase == Phase::kCallbacks || phase == Phase::kCheckpoint ||
         phase == Phase::kValidation;
}

std::int64_t sum(const SyntheticStep& step, bool after_exchange) {
  std::int64_t ns = 0;
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    if (is_after_exchange(static_cast<Phase>(i)) == after_exchange) ns += step.own_ns[i];
  }
  return ns;
}

double of(const std::function<double(int)>& function, int rank) {
  return function ? function(rank) : 0;
}

void write_plan(const std::filesystem::path& folder, const SyntheticRun& run) {
  const Json plan = {{"name", run.name}, {"world_size", run.ranks}, {"global_batch_size", 32 * run.ranks}};
  std::ofstream(folder / "plan.json") << plan.dump(1);
  std::ofstream(folder / "events.jsonl") << "";  // by which a run's folder is known
}

void write_agents(const std::filesystem::path& folder, const SyntheticRun& run, std::int64_t begin, std::int64_t end,
                  double steps_per_ns) {
  for (int first = 0; first < run.ranks; first += run.ranks_per_host) {
    const int last = std::min(run.ranks, first + run.ranks_per_host);
    const std::string id = fmt::format("node{}", first / run.ranks_per_host);
    std::ofstream file(folder / "profile" / ("agent-" + id + ".jsonl"));
    file << fmt::format(R"({{"record":"header","schema":1,"kind":"agent","agent":"{}","host":"{}","units":{{)"
                        R"("free_memory":"bytes","cpu_util_simple":"percent"}}}})"
                        "\n",
                        id, id);
    for (std::int64_t time = kSamplePeriod; time <= end; time += kSamplePeriod) {
      std::string cores, processes;
      for (int rank = first; rank < last; ++rank) {
        const double foreign = of(run.foreign_percent, rank);
        const double steps = std::max(0.0, static_cast<double>(time - begin) * steps_per_ns);
        cores += fmt::format("{}{:.1f}", cores.empty() ? "" : ",", 95.0);
        processes +=
            fmt::format(R"({}{{"rank":{},"pid":{},"resident_memory":{:.0f},"cpu_util":{:.1f},"cpu_wait":{:.1f}}})",
                        processes.empty() ? "" : ",", rank, 1000 + rank, 5e8 + of(run.leak_bytes, rank) * steps,
                        95.0 - foreign, of(run.cpu_wait_percent, rank));
      }
      file << fmt::format(R"({{"record":"system","time_ns":{},"interval_ns":{},"free_memory":8000000000,)"
                          R"("cpu_util_simple":95.00,"cpu_util_per_core":[{}],"processes":[{}]}})"
                          "\n",
                          time, kSamplePeriod, cores, processes);
    }
    file << fmt::format(R"({{"record":"end","time_ns":{},"how":"all ranks ended","samples":1,"lost":0}})"
                        "\n",
                        end);
  }
}

}  // namespace

SyntheticTruth write_synthetic_run(const std::filesystem::path& folder, const SyntheticRun& run) {
  std::filesystem::create_directories(folder / "profile");
  write_plan(folder, run);
  std::vector<SyntheticRank> ranks;
  ranks.reserve(static_cast<std::size_t>(run.ranks));
  for (int rank = 0; rank < run.ranks; ++rank) ranks.emplace_back(folder, run, rank);
  std::mt19937_64 random(run.seed);
  std::normal_distribution<double> noise(1, run.noise);
  const auto count = static_cast<std::size_t>(run.ranks);
  std::vector<std::int64_t> clocks(count, run.initialization_ns);
  std::vector<SyntheticStep> steps(count);
  SyntheticTruth truth;
  truth.wait_s.resize(count);
  for (std::int64_t batch = 1; batch <= run.steps; ++batch) {
    std::int64_t arrived = 0, exchange = 0;
    for (std::size_t r = 0; r < count; ++r) {
      steps[r] = ordinary_step(std::max(0.5, noise(random)));
      if (run.change) run.change(static_cast<int>(r), batch, steps[r]);
      arrived = std::max(arrived, clocks[r] + sum(steps[r], false));
      exchange = std::max(exchange, steps[r].exchange_ns);
    }
    for (std::size_t r = 0; r < count; ++r) {
      const std::int64_t start = clocks[r];
      const std::int64_t before = sum(steps[r], false);
      const std::int64_t wait = run.ranks > 1 ? arrived + exchange - start - before : 0;
      clocks[r] += before + wait + sum(steps[r], true);
      truth.wait_s[r] += static_cast<double>(wait) / 1e9;
      ranks[r].add({batch, start, clocks[r] - start, wait, start + before, exchange, &steps[r]});
    }
  }
  const std::int64_t end = *std::max_element(clocks.begin(), clocks.end());
  truth.loop_s = static_cast<double>(end - run.initialization_ns) / 1e9;
  for (std::size_t r = 0; r < count; ++r) truth.outliers += ranks[r].finish(clocks[r]);
  write_agents(folder, run, run.initialization_ns, end,
               static_cast<double>(run.steps) / static_cast<double>(end - run.initialization_ns));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "profile")) truth.bytes += entry.file_size();
  return truth;
}

}  // namespace dtrain::test
