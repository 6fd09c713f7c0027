#include "measure/loader_use.h"

#include <algorithm>

#include "dtrain/base/clock.h"

namespace dtrain::analysis {
namespace {

// If storage delivered less than this share of the requested bytes, the page cache had the files.
constexpr double kFromCache = 0.1;

double share(std::int64_t ns, double seconds) {
  return seconds > 0 ? std::clamp(to_seconds(ns) / seconds, 0.0, 1.0) : 0;
}

}  // namespace

double LoaderUse::cpu_share() const {
  return share(usage.cpu_ns, read_s);
}
double LoaderUse::no_core_share() const {
  return share(usage.no_core_ns, read_s);
}
double LoaderUse::storage_share() const {
  return std::max(0.0, 1 - cpu_share() - no_core_share());
}

std::optional<double> LoaderUse::bytes_of_request() const {
  const auto asked = static_cast<double>(std::max(usage.bytes, usage.disk_bytes));
  const auto from_disk = static_cast<double>(usage.disk_bytes);
  if (usage.requests <= 0 || from_disk <= 0 || from_disk < kFromCache * asked) return std::nullopt;
  return asked / static_cast<double>(usage.requests);
}

std::optional<LoaderUse> loader_use(const RunProfile& run, int rank) {
  LoaderUse use;
  double workers = 0;
  std::int64_t batches = 0;
  for (const RankProfile& one : run.ranks) {
    if (rank >= 0 && one.rank != rank) continue;
    for (const LoaderLine& line : one.loader) {
      if (line.usage.batches == 0) continue;
      use.usage.add(line.usage);
      use.read_s += to_seconds(std::max<std::int64_t>(0, line.fetch_ns));
      workers += line.workers;
      ++batches;
    }
    for (const WindowLine& window : one.windows) {
      if (window.loader_usage.batches <= 0) continue;
      use.usage.add(window.loader_usage);
      use.read_s += to_seconds(window.loader_fetch_ns);
      workers += static_cast<double>(window.loader_workers) * static_cast<double>(window.loader_usage.batches);
      batches += window.loader_usage.batches;
    }
    use.waited_s += to_seconds(one.phase_ns(profile::Phase::kDataloaderNext));
    use.steps_s += to_seconds(one.wall_ns());
  }
  if (batches == 0) return std::nullopt;
  use.workers = workers / static_cast<double>(batches);
  return use;
}

bool has_data_keys(const RunProfile& run) {
  const auto model = run.experiment.find("model");
  return model != run.experiment.end() && !model->is_null();
}

std::string loader_setting(const RunProfile& run, const std::string& key) {
  return (has_data_keys(run) ? "data." : "LoaderSettings::") + key;
}

}  // namespace dtrain::analysis
