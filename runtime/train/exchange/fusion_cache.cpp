#include "exchange/fusion_cache.h"

#include <algorithm>
#include <utility>

namespace dtrain::train {

FusionCache::FusionCache(const std::filesystem::path& folder, Json key) : cache_(folder, "fusion", std::move(key)) {}

std::optional<FusionAnswer> FusionCache::find(std::size_t gradients, const Logger& log) const {
  const auto json = cache_.find(log);
  if (!json) return std::nullopt;
  try {
    FusionAnswer answer;
    answer.cuts = json->at("cuts").get<std::vector<std::size_t>>();
    answer.ready_us = json->at("ready_us").get<std::vector<double>>();
    answer.link = {json->at("latency_us").get<double>(), json->at("us_per_byte").get<double>()};
    const auto& cuts = answer.cuts;
    const bool rising = std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
    const bool complete = !cuts.empty() && cuts.back() + 1 == gradients && answer.ready_us.size() == gradients;
    if (rising && complete) return answer;
    log->warn("{} holds no plan for {} gradients and is not used", file().string(), gradients);
  } catch (const std::exception& error) {
    log->warn("the remembered fusion plan is not used: {}: {}", file().string(), error.what());
  }
  return std::nullopt;
}

void FusionCache::store(const FusionAnswer& answer, const Json& report, const Logger& log) const {
  const bool stored = cache_.store({{"cuts", answer.cuts},
                                    {"ready_us", answer.ready_us},
                                    {"latency_us", answer.link.latency_us},
                                    {"us_per_byte", answer.link.us_per_byte},
                                    {"report", report}},
                                   log);
  if (stored) log->info("tensor fusion: remembered in {}", file().string());
}

}  // namespace dtrain::train
