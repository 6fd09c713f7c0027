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
#include "dtrain/run/version.h"
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

}  // namespace

RanksOfHost on_this_host(RanksOfHost ranks) {
  if (ranks.cpus.empty()) {
    for (const scheduler::Slot& slot : scheduler::local_slots(std::max(ranks.slots, ranks.ranks)).slots) {
      if (std::cmp_less(ranks.cpus.size(), ranks.ranks)) ranks.cpus.push_back(slot.cpus);
    }
  }
  if (ranks.threads <= 0) ranks.threads = static_cast<int>(std::max<std::size_t>(1, ranks.cpus.front().size()));
  return ranks;
}

Json limits_key(int threads, int ranks) {
  const host::Processor processor = host::processor();
  return {{"cpu", processor.name}, {"revision", processor.revision}, {"threads", threads},
          {"ranks", ranks},        {"libtorch", DTRAIN_LIBTORCH},    {"dtrain", version()}};
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
    if (entry->at("key") == limits_key(limits.threads, limits.ranks)) {
      result.push_back(std::move(limits));
    }
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return std::tie(a.threads, a.ranks) < std::tie(b.threads, b.ranks); });
  return result;
}

}  // namespace dtrain::run
