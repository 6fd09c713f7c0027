#include "exchange/fusion_cache.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::train {

namespace {

// FNV-1a, 64 bits: only names a file; the whole key is in it.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

FusionCache::FusionCache(const std::filesystem::path& folder, Json key) : key_(std::move(key)) {
  if (folder.empty()) return;
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of(to_line(key_))));
  file_ = folder / "fusion" / name.data();
}

std::optional<FusionAnswer> FusionCache::find(std::size_t gradients, const Logger& log) const {
  if (file_.empty() || !std::filesystem::exists(file_)) return std::nullopt;
  try {
    const Json json = read_json(file_);
    if (json.at("key") != key_) return std::nullopt;
    FusionAnswer answer;
    answer.cuts = json.at("cuts").get<std::vector<std::size_t>>();
    answer.ready_us = json.at("ready_us").get<std::vector<double>>();
    answer.link = {json.at("latency_us").get<double>(), json.at("us_per_byte").get<double>()};
    const auto& cuts = answer.cuts;
    const bool rising = std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
    const bool complete = !cuts.empty() && cuts.back() + 1 == gradients && answer.ready_us.size() == gradients;
    if (rising && complete) return answer;
    log->warn("{} holds no plan for {} gradients and is not used", file_.string(), gradients);
  } catch (const std::exception& error) {
    log->warn("the remembered fusion plan is not used: {}: {}", file_.string(), error.what());
  }
  return std::nullopt;
}

void FusionCache::store(const FusionAnswer& answer, const Json& report, const Logger& log) const {
  if (file_.empty()) return;
  try {
    std::filesystem::create_directories(file_.parent_path());
    write_file_atomic(file_, to_line({{"key", key_},
                                      {"cuts", answer.cuts},
                                      {"ready_us", answer.ready_us},
                                      {"latency_us", answer.link.latency_us},
                                      {"us_per_byte", answer.link.us_per_byte},
                                      {"report", report}}) +
                                 "\n");
    log->info("tensor fusion: remembered in {}", file_.string());
  } catch (const std::exception& error) {
    log->warn("the fusion plan is not remembered: {}", error.what());
  }
}

}  // namespace dtrain::train
