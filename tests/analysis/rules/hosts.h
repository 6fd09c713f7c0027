// What the rules see, made by hand: hosts with one data point each half second.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "findings/judgement.h"

namespace dtrain::analysis::findings {

inline constexpr std::int64_t kSecond = 1'000'000'000;

// The rule of this name in the list, its parameters at their defaults but for `parameters`: {"window": 5}.
class NamedRule {
 public:
  explicit NamedRule(const std::string& name, const Json& parameters = Json::object()) {
    for (const Judgement& one : judgements()) {
      if (one.judge != nullptr && one.id == name) rule_ = one;
    }
    if (rule_.judge == nullptr) throw std::invalid_argument("no rule is called " + name);
    std::vector<std::string> given;
    for (const auto& [key, value] : parameters.items()) {
      given.push_back(name + "." + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
    }
    config::read_overrides(given, [this](config::Keys& keys) { declare_keys(keys, rule_); });
  }
  Finding judge(const RuleData& data) const { return findings::judge(rule_, data); }

 private:
  Judgement rule_;
};

// `points` samples, the i-th as `fill` makes it.
inline HostSeries make_host(std::size_t gpus, std::size_t points,
                            const std::function<void(std::size_t i, HostSample& sample)>& fill) {
  HostSeries host;
  host.agent = "a";
  host.host = "node";
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) host.gpus.push_back({static_cast<std::int64_t>(gpu), "H100", 90.0, 9.0});
  for (std::size_t i = 0; i < points; ++i) {
    HostSample sample;
    sample.time_ns = static_cast<std::int64_t>(i) * kSecond / 2;
    sample.gpus.resize(gpus);
    fill(i, sample);
    host.samples.push_back(std::move(sample));
  }
  return host;
}

inline HostSeries with_util(std::size_t points, const std::function<double(std::size_t)>& util) {
  return make_host(1, points, [&](std::size_t i, HostSample& sample) { sample.gpus[0].util_percent = util(i); });
}

inline std::int64_t count(const Finding& result, const char* key) {
  const auto found = result.counts.find(key);
  return found == result.counts.end() ? -1 : found->get<std::int64_t>();
}

// What is judged and what is not makes all samples there were.
inline void expect_samples_add_up(const Finding& result, std::int64_t samples) {
  EXPECT_EQ(count(result, "samples"), samples) << result.id;
  EXPECT_EQ(count(result, "skipped_by_patience") + count(result, "after_training") + count(result, "judged"), samples)
      << result.id;
}

// What a run on these hosts has recorded.
template <typename... Host>
RuleData all(Host... hosts) {
  RuleData data;
  (data.hosts.push_back(std::move(hosts)), ...);
  return data;
}

inline RuleData with_loaders(RuleData data, std::vector<LoaderSeries> loaders) {
  data.loaders = std::move(loaders);
  return data;
}

}  // namespace dtrain::analysis::findings
