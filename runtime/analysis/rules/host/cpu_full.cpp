// CPUs that are all busy while GPUs train: launching kernels and preparing data then wait for each other.
#include "rules/host/host_rule.h"
#include "rules/windows.h"

namespace dtrain::analysis::rules {
namespace {

struct CpuFull {
  static constexpr const char* kWord = "CPUFull";
  static constexpr const char* kText = "Cores that are all busy while GPUs train.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "95th percentile of CPU utilization, in percent, above which the cores are all busy."},
                threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult CpuFull::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "system", "hosts", "Looks for CPUs that are nearly always all busy while GPUs train.",
                   "Prepare data before the training or on the GPU, or use a host with more cores for each GPU.");
  if (!has_gpus(data.hosts)) {
    return not_applicable(std::move(result),
                          "CPUs do the computing of this run and are meant to be busy; see CPUOversubscription");
  }
  return judge_hosts(
      std::move(result), data.hosts, patience, "how busy the CPUs were is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto busy = values_of(judged.samples, [](const HostSample& s) { return s.cpu_percent; });
        if (host.gpus.empty() || busy.empty()) return std::nullopt;
        const double p95 = quantile_of(busy, 0.95);
        return HostVerdict{p95 > threshold, static_cast<std::int64_t>(busy.size()), {{"p95_percent", p95}}};
      });
}

std::unique_ptr<Rule> make_cpu_full() {
  return std::make_unique<RuleOf<CpuFull>>();
}

}  // namespace dtrain::analysis::rules
