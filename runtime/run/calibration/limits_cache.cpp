#include "calibration/limits_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <tuple>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/cpu.h"
#include "dtrain/run/version.h"
#include "dtrain/scheduler/core_groups.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bits: only names a file; the whole key is in it.
std::uint64_t hash_of_key(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Remembered::Remembered(const fs::path& cache_folder, const std::string& question)
    : folder_(cache_folder.empty() ? fs::path() : cache_folder / question) {}

fs::path Remembered::file(const Json& key) const {
  if (folder_.empty()) return {};
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of_key(to_line(key))));
  return folder_ / name.data();
}

std::optional<Json> Remembered::read(const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return std::nullopt;
  try {
    Json json = read_json(file);
    if (json.at("key").is_object()) return json;
  } catch (const std::exception&) {  // the limits are measured anew, and the file is replaced
  }
  return std::nullopt;
}

std::optional<Json> Remembered::find(const Json& key) const {
  if (folder_.empty()) return std::nullopt;
  std::optional<Json> entry = read(file(key));
  if (!entry || entry->at("key") != key) return std::nullopt;
  return entry;
}

void Remembered::store(const Json& key, const Json& answer) const {
  if (folder_.empty()) return;
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) throw SystemError("cannot make the folder " + folder_.string(), code.value());
  Json entry = {{"key", key}};
  entry.update(answer);
  write_file_atomic(file(key), to_line(entry) + "\n");
}

namespace {

// A machine that is always busy is not measured at each launch.
constexpr std::chrono::hours kDisturbedLasts{1};
constexpr std::chrono::minutes kFirstPause{1};  // between repetitions; each next one is twice as long
// Ranks that share their cores with one busy program each lose half of them, while the program alone has all of them.
// So a busy share below the displaced share means less work of others, and below its half clearly less.
constexpr double kQuieter = 0.5;
constexpr const char* kRepeats = "repeats";
constexpr int kMostRepeats = 7;  // the pause is longer than an hour then

// Returns the limits of an entry; empty: the entry has none.
std::optional<profile::RankLimits> limits_in(const std::optional<Json>& entry) {
  if (!entry || !entry->contains("limits")) return std::nullopt;
  profile::RankLimits limits = profile::rank_limits_of(entry->at("limits"));
  // Every measurement has this figure: without it, the file is damaged.
  return limits.memory_gb_s ? std::optional(std::move(limits)) : std::nullopt;
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
  // Every rank gets as many threads as the rank with the fewest cores has cores.
  for (const std::vector<int>& of_rank : ranks.cpus) {
    const int threads = std::max(1, scheduler::count_cores(cpus, of_rank));
    const auto most = static_cast<int>(of_rank.size());
    ranks.threads = ranks.threads == 0 ? threads : std::min(ranks.threads, threads);
    ranks.most_threads = ranks.most_threads == 0 ? most : std::min(ranks.most_threads, most);
  }
  return ranks;
}

Json limits_key(int threads, int ranks, int most_threads) {
  // The version is read once: this takes some 50 ms.
  static const std::string libtorch = libtorch_minor(process_variables());
  const host::Processor processor = host::processor();
  Json key = {{"cpu", processor.name}, {"revision", processor.revision}, {"threads", threads},
              {"ranks", ranks},        {"libtorch", libtorch},           {"dtrain", version()}};
  if (most_threads > threads) key["most_threads"] = most_threads;
  return key;
}

bool should_measure_again(const Measurement& last, std::optional<double> busy_share) {
  if (last.displaced_share <= profile::kDisturbed) return false;
  if (last.age > kDisturbedLasts) return true;
  if (!busy_share || *busy_share > kQuieter * last.displaced_share) return false;
  return last.repeats == 0 || last.age >= kFirstPause * (1 << (std::min(last.repeats, kMostRepeats) - 1));
}

LimitsCache::LimitsCache(const fs::path& folder) : files_(folder, "limits") {}

fs::path LimitsCache::lock_file() const {
  return files_.folder().empty() ? fs::path() : files_.folder() / "lock";
}

std::optional<profile::RankLimits> LimitsCache::find(const Json& key) const {
  return limits_in(files_.find(key));
}

Measurement LimitsCache::measurement(const Json& key, const profile::RankLimits& found) const {
  Measurement last{.displaced_share = found.displaced_share.value_or(0)};
  if (const std::optional<Json> entry = files_.find(key); entry && entry->contains(kRepeats)) {
    const Json& repeats = entry->at(kRepeats);
    if (repeats.is_number_integer()) last.repeats = std::clamp(repeats.get<int>(), 0, kMostRepeats);
  }
  std::error_code code;
  const auto written = fs::last_write_time(files_.file(key), code);
  if (!code) last.age = std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - written);
  return last;
}

void LimitsCache::store(const Json& key, const profile::RankLimits& limits, int repeats) const {
  Json entry = {{"limits", profile::to_json(limits)}};
  if (repeats > 0) entry[kRepeats] = std::min(repeats, kMostRepeats);
  files_.store(key, entry);
}

std::vector<profile::RankLimits> LimitsCache::of_this_machine() const {
  std::vector<profile::RankLimits> result;
  if (files_.folder().empty()) return result;
  std::error_code code;
  for (const auto& file : fs::directory_iterator(files_.folder(), code)) {
    const std::optional<Json> entry = Remembered::read(file.path());
    const std::optional<profile::RankLimits> known = limits_in(entry);
    if (!known) continue;
    profile::RankLimits limits = *known;
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
