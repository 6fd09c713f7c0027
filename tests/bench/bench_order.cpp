// How quickly an epoch of a data set of 10^9 samples begins, and goes on from its middle; how much memory that takes;
// what an order costs a sample. The data are files with holes, which take no disk.
//
//   bench_order [--json] [--gigabytes N]
//
// --gigabytes: also reads so many of the first epoch, and prints by how much the memory of the process has grown.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/epoch_order.h"
#include "dtrain/data/loader.h"

namespace {

using namespace dtrain;

constexpr std::int64_t kSamples = 1'000'000'000;
constexpr std::int64_t kWidth = 1'024;
constexpr int kTurns = 15;

std::filesystem::path holes(const std::filesystem::path& file, std::int64_t bytes) {
  std::ofstream(file).put('\0');
  std::filesystem::resize_file(file, static_cast<std::uintmax_t>(bytes));
  return file;
}

double resident_mb() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * 4096 / 1e6;
}

// Milliseconds, the median over the turns.
template <typename Work>
double ms_of(const Work& work) {
  std::vector<double> times;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    work(turn);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return median_low(times);
}

double ns_of_sample(const data::EpochOrder& order) {
  constexpr std::int64_t kCount = 1'000'000;
  std::int64_t sum = 0;
  const double ms = ms_of([&](int turn) {
    for (const std::int64_t sample : order.take(turn * kCount, kCount)) sum += sample;
  });
  return sum < 0 ? 0 : ms * 1e6 / kCount;
}

Json measure(const std::filesystem::path& folder, double gigabytes) {
  const auto features = holes(folder / "x", kSamples * kWidth), target = holes(folder / "y", kSamples * 8);
  const double before_mb = resident_mb();
  std::shared_ptr<data::Dataset> dataset;
  const double open_ms = ms_of([&](int) {
    dataset = data::open_raw({features, data::ElementType::kUint8, {kWidth}}, {target, data::ElementType::kInt64, {}});
  });
  const data::LoaderOptions options{.batch_size = 64, .rank = 1, .world_size = 4, .seed = 7, .workers = 1};
  std::optional<data::SampleLoader> loader;
  const double loader_ms = ms_of([&](int) { loader.emplace(dataset, options); });
  const double epoch_ms = ms_of([&](int turn) { loader->start_epoch(turn); });
  const double first_batch_ms = ms_of([&](int turn) {
    loader->start_epoch(turn + 100);
    loader->next();
  });
  const std::string state = loader->state().text();
  data::LoaderState middle = data::LoaderState::parse(state);
  const double restore_ms = ms_of([&](int turn) {
    middle.position = kSamples / 2 + turn * 12'345;
    loader->restore(middle);
  });
  const double restored_batch_ms = ms_of([&](int turn) {
    middle.position = kSamples / 3 + turn * 54'321;
    loader->restore(middle);
    loader->next();
  });
  Json result = {{"samples", kSamples},
                 {"open_ms", open_ms},
                 {"loader_ms", loader_ms},
                 {"epoch_ms", epoch_ms},
                 {"first_batch_ms", first_batch_ms},
                 {"restore_ms", restore_ms},
                 {"restore_and_batch_ms", restored_batch_ms},
                 {"state_bytes", state.size()},
                 {"memory_mb", resident_mb() - before_mb}};
  const auto table = std::make_shared<data::BlockTable>(kSamples, dataset->blocks());
  result["order_ns_of_sample"] = ns_of_sample({table, 7, 1});
  result["whole_order_ns_of_sample"] =
      ns_of_sample({std::make_shared<data::BlockTable>(kSamples, data::Blocks{}), 7, 1});
  if (gigabytes > 0) {
    const double read_before_mb = resident_mb();
    loader->start_epoch(1'000);
    double most_mb = 0, read = 0;
    const auto start = std::chrono::steady_clock::now();
    while (read < gigabytes * 1e9) {
      const auto batch = loader->next();
      if (!batch) break;
      read += static_cast<double>(batch->samples * (kWidth + 8));
      most_mb = std::max(most_mb, resident_mb() - read_before_mb);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result["read_gb"] = read / 1e9;
    result["read_gb_per_s"] = read / 1e9 / seconds;
    result["read_memory_growth_mb"] = most_mb;
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  double gigabytes = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") json = true;
    if (argument == "--gigabytes" && i + 1 < argc) gigabytes = std::stod(argv[++i]);
  }
  const bench::ScratchFolder scratch;
  const Json result = measure(scratch.path(), gigabytes);
  if (json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_order: " << dtrain::describe(error) << "\n";
  return 1;
}
