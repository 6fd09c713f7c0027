// A host's traffic against the speed of its links, each direction by itself.
#include <algorithm>

#include "rules/host/host_rule.h"
#include "rules/windows.h"

namespace dtrain::analysis::rules {
namespace {

struct NetworkFull {
  static constexpr const char* kWord = "NetworkFull";
  static constexpr const char* kText = "A network that is nearly full.";
  double threshold = 90;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"threshold",
         "95th percentile of the rate, in percent of the link's speed, above which the network is nearly full."},
        threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// Of all counted interfaces together; empty where one reports no speed.
std::optional<double> link_speed(const Machine& machine) {
  if (!machine.network || machine.network->empty()) return std::nullopt;
  double sum = 0;
  for (const Interface& interface : *machine.network) {
    if (!interface.bytes_per_s) return std::nullopt;
    sum += *interface.bytes_per_s;
  }
  return sum;
}

}  // namespace

RuleResult NetworkFull::judge(const RuleData& data) const {
  return judge_hosts(begin_result(kWord, "system", "hosts",
                                  "Compares a host's traffic with the speed of its links, each direction by itself.",
                                  has_gpus(data.hosts)
                                      ? "Exchange less often (optimizations.aggregation_frequency above 1), keep data "
                                        "on the hosts, or use a faster link."
                                      : "Exchange fewer bytes (optimizations.gradient_compression, "
                                        "optimizations.aggregation_frequency above 1), keep data "
                                        "on the hosts, or use a faster link."),
                     data.hosts, patience, "the interfaces report no speed, as virtual ones do not",
                     [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
                       const auto speed = link_speed(host.machine);
                       const auto sent = values_of(judged.samples, [](const HostSample& s) { return s.sent; });
                       const auto received = values_of(judged.samples, [](const HostSample& s) { return s.received; });
                       if (!speed || *speed <= 0 || sent.empty() || received.empty()) return std::nullopt;
                       const double sent_p95 = quantile_of(sent, 0.95);
                       const double received_p95 = quantile_of(received, 0.95);
                       const double used = 100 * std::max(sent_p95, received_p95) / *speed;
                       return HostVerdict{used > threshold,
                                          static_cast<std::int64_t>(sent.size()),
                                          {{"p95_percent", used},
                                           {"sent_p95_bytes_per_s", sent_p95},
                                           {"received_p95_bytes_per_s", received_p95},
                                           {"link_bytes_per_s", *speed}}};
                     });
}

std::unique_ptr<Rule> make_network_full() {
  return std::make_unique<RuleOf<NetworkFull>>();
}

}  // namespace dtrain::analysis::rules
