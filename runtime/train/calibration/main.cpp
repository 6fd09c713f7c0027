// dtrain-calibrate --threads T [--most-threads M] --ranks N [--cpus 0,1:2,3]: measures the limits of this machine for a
// rank, as a process beside dtrain that may link libtorch. Prints one line of JSON: {"libtorch", "seconds", "limits"}.
// dtrain-calibrate --gpu I: measures the limits of a visible GPU: {"libtorch", "seconds", "gpu_limits"}.
// dtrain-calibrate --gpus N: measures NCCL between the first N visible GPUs: {"libtorch", "seconds", "exchange"}.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>
#include <CLI/CLI.hpp>

#include "calibration/gpu_exchange.h"
#include "calibration/gpu_workloads.h"
#include "calibration/rank_processes.h"
#include "calibration/workloads.h"
#include "device/training_device.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/numeric.h"
#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/rank_limits.h"
#include "numerics/matmul_path.h"

namespace dtrain::calibration {
namespace {

struct Setting {
  int threads = 1;                     // of a rank: one thread for each core
  int most_threads = 0;                // one thread for each logical CPU, which is tried; 0 or `threads`: not tried
  int ranks = 1;                       // of this host
  std::vector<std::vector<int>> cpus;  // of each rank; empty: not pinned
};

using Watch = std::chrono::steady_clock;

constexpr int kRounds = 4;                        // the best round counts: other load only slows a round
constexpr std::chrono::milliseconds kWindow{30};  // time for each workload in a round
constexpr std::size_t kLeastCalls = 3;
constexpr std::chrono::milliseconds kLongest{1200};   // no round begins after this time
constexpr unsigned kDeadline = 30;                    // seconds; SIGALRM ends a process that hangs
constexpr double kGainOfSiblings = 1.05;              // a smaller gain is noise, and twice the threads cost elsewhere
constexpr std::size_t kGoOn = 0;                      // index of the first rank's flag for another round
constexpr std::size_t kDisplaced = 1;                 // index of a rank's displaced shares: one for each round
constexpr std::size_t kRates = kDisplaced + kRounds;  // index of its rates: for each round, for each figure
constexpr std::size_t kValues = kRates + kRounds * kFigures;

double median_seconds(const std::function<void()>& call) {
  std::vector<double> times;
  const auto end = Watch::now() + kWindow;
  while (times.size() < kLeastCalls || Watch::now() < end) {
    const auto start = Watch::now();
    call();
    times.push_back(std::chrono::duration<double>(Watch::now() - start).count());
  }
  return median_high(times);
}

using MakeWorkloads = std::vector<Workload>(RankProcess&);
using Figures = std::array<double, kFigures>;  // per second, for one rank; 0: not measured

// Returns the time that this process's threads have waited for a core while runnable. 0: the kernel does not tell.
std::chrono::duration<double> core_wait_of_process() {
  std::chrono::nanoseconds sum{0};
  std::error_code code;  // a thread that ends meanwhile is left out
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", code)) {
    sum += host::read_core_wait(std::atoi(thread.path().filename().c_str())).value_or(std::chrono::nanoseconds(0));
  }
  return sum;
}

// True if each thread has a core that no other thread of the ranks has. Otherwise the ranks displace each other.
bool has_cores_of_its_own(const Setting& setting) {
  std::set<int> all;
  std::size_t count = 0;
  for (const std::vector<int>& cpus : setting.cpus) {
    if (std::cmp_less(cpus.size(), setting.threads)) return false;
    all.insert(cpus.begin(), cpus.end());
    count += cpus.size();
  }
  return all.size() == count && std::cmp_equal(setting.cpus.size(), setting.ranks);
}

// The work of one process. All processes measure the same workload at the same time.
void measure_as_rank(RankProcess& self, const Setting& setting, config::Matmul matmul, MakeWorkloads* make) {
  ::alarm(kDeadline);
  at::set_num_threads(setting.threads);
  train::choose_matmul(matmul);
  const c10::InferenceMode no_gradients;
  const auto start = Watch::now();
  const std::vector<Workload> all = make(self);
  for (std::size_t round = 0; round < kRounds; ++round) {
    self.barrier();
    if (self.rank() == 0) self.values()[kGoOn] = round == 0 || Watch::now() - start < kLongest ? 1 : 0;
    self.barrier();
    if (self.values_of(0)[kGoOn] == 0) break;
    double* const rates = self.values() + kRates + round * kFigures;
    const auto begin = Watch::now();
    const auto waited = core_wait_of_process();
    for (const Workload& workload : all) {
      self.barrier();
      rates[workload.figure] = std::max(rates[workload.figure], workload.amount / median_seconds(workload.run));
    }
    const std::chrono::duration<double> took = Watch::now() - begin;
    self.values()[kDisplaced + round] = (core_wait_of_process() - waited) / (took * setting.threads);
  }
}

struct Measured {
  Figures best{};              // the best of the rounds' medians over ranks
  double displaced_share = 1;  // the smallest of the rounds' medians over ranks
};

Measured summarize(const std::vector<double>& values, int ranks) {
  Measured result;
  Figures& best = result.best;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t figure = 0; figure < kFigures; ++figure) {
      std::vector<double> of_ranks;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
        of_ranks.push_back(values[rank * kValues + kRates + round * kFigures + figure]);
      }
      best[figure] = std::max(best[figure], median_high(of_ranks));
    }
    std::vector<double> displaced;
    bool is_measured = false;  // slow processes skip the last rounds
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
      const double* const of_rank = values.data() + rank * kValues;
      displaced.push_back(of_rank[kDisplaced + round]);
      is_measured = is_measured || of_rank[kRates + round * kFigures + kMatmulFloat32] > 0;
    }
    if (is_measured) result.displaced_share = std::min(result.displaced_share, median_high(displaced));
  }
  return result;
}

Measured measure_with(const Setting& setting, config::Matmul matmul, MakeWorkloads* make, std::size_t shared_bytes) {
  const RankProcessOptions options{
      .ranks = setting.ranks, .cpus = setting.cpus, .values = kValues, .shared_bytes = shared_bytes};
  return summarize(
      run_rank_processes(options, [&](RankProcess& self) { measure_as_rank(self, setting, matmul, make); }),
      setting.ranks);
}

// Returns GFLOP/s of float32 matrix products with one thread for each core and for each logical CPU, by threads.
std::map<int, double> try_siblings(const Setting& setting) {
  std::map<int, double> rates;
  for (const int threads : {setting.threads, setting.most_threads}) {
    Setting tried = setting;
    tried.threads = threads;
    rates[threads] = measure_with(tried, config::Matmul::kAuto, float32_workloads, 0).best[kMatmulFloat32] / 1e9;
  }
  return rates;
}

std::optional<double> in_giga(double per_second) {
  return per_second > 0 ? std::optional(per_second / 1e9) : std::nullopt;
}

// Measures the limits of this machine for one rank, while one process for each rank measures. Takes about 2 s, and up
// to 20 s on a machine that is busy with other things. The calling process must have one thread, and must not have used
// libtorch. Error: a process that measures has failed.
profile::RankLimits measure(Setting setting) {
  profile::RankLimits limits;
  limits.cpu = host::processor().name;
  if (setting.most_threads > setting.threads) {
    limits.gflops_by_threads = try_siblings(setting);
    const double per_core = limits.gflops_by_threads[setting.threads];
    const double all = limits.gflops_by_threads[setting.most_threads];
    if (all > kGainOfSiblings * per_core) setting.threads = setting.most_threads;
  }
  limits.threads = setting.threads;
  limits.ranks = setting.ranks;
  const auto [best, displaced_share] =
      measure_with(setting, config::Matmul::kAuto, all_workloads, all_reduce_bytes(setting.ranks));
  if (displaced_share > 0 && has_cores_of_its_own(setting)) limits.displaced_share = displaced_share;
  limits.memory_gb_s = in_giga(best[kMemory]);
  limits.all_reduce_gb_s = in_giga(best[kAllReduce]);
  const auto add = [&rates = best](std::map<std::string, double>& to, const char* type, Figure figure) {
    if (const auto rate = in_giga(rates[figure])) to[type] = *rate;
  };
  add(limits.gflops, "float32", kMatmulFloat32);
  add(limits.gflops, "bfloat16", kMatmulBfloat16);
  add(limits.gflops, "float16", kMatmulFloat16);
  add(limits.convolution_gflops, "float32", kConvolutionFloat32);
  add(limits.convolution_gflops, "bfloat16", kConvolutionBfloat16);
  if (train::has_fast_matmul()) {  // otherwise the measured path is MKL's default
    limits.matmul = profile::MatmulPath::kFast;
    limits.matmul_default_gflops =
        in_giga(measure_with(setting, config::Matmul::kDefault, float32_workloads, 0).best[kMatmulFloat32]);
  }
  return limits;
}

Json measure_rank(Setting setting) {
  return {{"limits", profile::to_json(measure(std::move(setting)))}};
}

Json measure_gpu_number(int gpu) {
  ::alarm(kDeadline);
  return {{"gpu_limits", profile::to_json(measure_gpu(train::open_device(gpu)))}};
}

Json measure_gpus(int gpus) {
  return {{"exchange", profile::to_json(measure_exchange(gpus))}};
}

// Parses the CPUs of each rank: "0,1:2,3" for two ranks. Empty: no CPUs.
std::vector<std::vector<int>> cpus_of(const std::string& text) {
  std::vector<std::vector<int>> ranks;
  if (text.empty()) return ranks;
  for (const std::string& rank : split(text, ':')) {
    ranks.emplace_back();
    for (const std::string& cpu : split(rank, ',')) ranks.back().push_back(std::stoi(cpu));
  }
  return ranks;
}

}  // namespace
}  // namespace dtrain::calibration

int main(int argc, char** argv) {
  using namespace dtrain::calibration;
  dtrain::prepare_for_limits();
  const auto start = Watch::now();
  Setting setting;
  std::string cpus;
  std::optional<int> gpu, gpus;
  CLI::App app(
      "Measures the limits of this machine for a rank of dtrain. dtrain starts it; dtrain doctor --bench shows "
      "the figures.");
  app.add_option("--threads", setting.threads, "Threads of a rank")->check(CLI::Range(1, 4096));
  app.add_option("--most-threads", setting.most_threads, "Threads of a rank with one for each logical CPU, to be tried")
      ->check(CLI::Range(1, 4096));
  app.add_option("--ranks", setting.ranks, "Ranks on this host")->check(CLI::Range(1, 4096));
  app.add_option("--cpus", cpus, "The CPUs of each rank: 0,1:2,3")
      ->check(CLI::Validator(
          [](std::string& text) {
            return text.find_first_not_of("0123456789,:") == std::string::npos ? "" : "not like 0,1:2,3";
          },
          "CPUS"));
  app.add_option("--gpu", gpu, "Measure this GPU instead, by its number among those that CUDA shows")
      ->check(CLI::Range(0, 4096));
  app.add_option("--gpus", gpus, "Measure NCCL between so many GPUs instead, the first that CUDA shows")
      ->check(CLI::Range(2, 4096));
  CLI11_PARSE(app, argc, argv);
  try {
    setting.cpus = cpus_of(cpus);
    const dtrain::Json measured = gpus ? measure_gpus(*gpus) : gpu ? measure_gpu_number(*gpu) : measure_rank(setting);
    const std::chrono::duration<double> seconds = Watch::now() - start;
    dtrain::Json answer = {{"libtorch", TORCH_VERSION}, {"seconds", seconds.count()}};
    answer.update(measured);
    std::printf("%s\n", dtrain::to_line(answer).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-calibrate: %s\n", dtrain::describe(error).c_str());
    return 1;
  }
}
