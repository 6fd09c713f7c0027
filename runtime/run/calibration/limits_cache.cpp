#include "calibration/limits_cache.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <tuple>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/topology.h"
#include "dtrain/run/version.h"
#include "dtrain/scheduler/core_groups.h"
#include "dtrain/scheduler/local_slots.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bits: only names a file; the whole key is in it.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// {"key", "limits"}; empty for a file that is no such thing.
std::optional<Json> read_entry(const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return std::nullopt;
  try {
    Json json = read_json(file);
    // Every measurement has this figure: without it, the file is damaged.
    if (json.at("key").is_object() && profile::rank_limits_of(json.at("limits")).memory_gb_s) return json;
  } catch (const std::exception&) {  // it is measured anew, and replaced
  }
  return std::nullopt;
}

std::vector<std::vector<int>> cpus_of_slots(const std::vector<std::vector<int>>& cores, int slots) {
  std::vector<std::vector<int>> cpus;
  for (scheduler::Slot& slot : scheduler::divide_cores(cores, slots).slots) cpus.push_back(std::move(slot.cpus));
  return cpus;
}

std::vector<std::vector<int>> cpus_of_groups(const std::vector<host::Core>& cores, int slots) {
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : cores) units.push_back(scheduler::unit_of(core));
  std::vector<std::vector<int>> cpus;
  for (const std::vector<int>& group : scheduler::divide_cores_evenly(units, slots)) {
    cpus.push_back(scheduler::cpus_of(cores, group));
  }
  return cpus;
}

}  // namespace

RanksOfHost on_this_host(RanksOfHost ranks) {
  const std::vector<host::Core> cores = host::usable_cores();
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  if (ranks.cpus.empty()) {
    const int slots = std::max(ranks.slots, ranks.ranks);
    ranks.cpus = ranks.of_cores && std::cmp_less_equal(slots, cores.size()) ? cpus_of_groups(cores, slots)
                                                                            : cpus_of_slots(cpus, slots);
    if (std::cmp_greater(ranks.cpus.size(), ranks.ranks)) ranks.cpus.resize(static_cast<std::size_t>(ranks.ranks));
  }
  if (ranks.threads > 0) return ranks;
  // As many as the rank with the fewest cores has.
  for (const std::vector<int>& of_rank : ranks.cpus) {
    const int threads = std::max(1, scheduler::count_cores(cpus, of_rank));
    const auto most = static_cast<int>(of_rank.size());
    ranks.threads = ranks.threads == 0 ? threads : std::min(ranks.threads, threads);
    ranks.most_threads = ranks.most_threads == 0 ? most : std::min(ranks.most_threads, most);
  }
  return ranks;
}

Json limits_key(int threads, int ranks, int most_threads) {
  const host::Processor processor = host::processor();
  Json key = {{"cpu", processor.name}, {"revision", processor.revision}, {"threads", threads},
              {"ranks", ranks},        {"libtorch", DTRAIN_LIBTORCH},    {"dtrain", version()}};
  if (most_threads > threads) key["most_threads"] = most_threads;
  return key;
}

LimitsCache::LimitsCache(const fs::path& folder) : folder_(folder.empty() ? fs::path() : folder / "limits") {}

fs::path LimitsCache::file(const Json& key) const {
  if (folder_.empty()) return {};
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of(to_line(key))));
  return folder_ / name.data();
}

fs::path LimitsCache::lock_file() const {
  return folder_.empty() ? fs::path() : folder_ / "lock";
}

std::optional<profile::RankLimits> LimitsCache::find(const Json& key) const {
  if (folder_.empty()) return std::nullopt;
  const std::optional<Json> entry = read_entry(file(key));
  if (!entry || entry->at("key") != key) return std::nullopt;
  return profile::rank_limits_of(entry->at("limits"));
}

void LimitsCache::store(const Json& key, const profile::RankLimits& limits) const {
  if (folder_.empty()) return;
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) throw SystemError("cannot make the folder " + folder_.string(), code.value());
  write_file_atomic(file(key), to_line({{"key", key}, {"limits", profile::to_json(limits)}}) + "\n");
}

std::vector<profile::RankLimits> LimitsCache::of_this_machine() const {
  std::vector<profile::RankLimits> result;
  if (folder_.empty()) return result;
  std::error_code code;
  for (const auto& file : fs::directory_iterator(folder_, code)) {
    const std::optional<Json> entry = read_entry(file.path());
    if (!entry) continue;
    profile::RankLimits limits = profile::rank_limits_of(entry->at("limits"));
    const Json& key = entry->at("key");
    const int threads = limits.gflops_by_threads.empty() ? limits.threads : limits.gflops_by_threads.begin()->first;
    const int most = limits.gflops_by_threads.empty() ? 0 : limits.gflops_by_threads.rbegin()->first;
    if (key == limits_key(threads, limits.ranks, most)) result.push_back(std::move(limits));
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return std::tie(a.threads, a.ranks) < std::tie(b.threads, b.ranks); });
  return result;
}

}  // namespace dtrain::run
