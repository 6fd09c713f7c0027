// What is read from and written to a host's disks against what disks of their kinds give.
#include "rules/host/host_rule.h"
#include "rules/windows.h"

namespace dtrain::analysis::rules {
namespace {

struct DiskRate {
  static constexpr const char* kWord = "DiskRate";
  static constexpr const char* kText = "Disks that are read and written nearly as fast as they allow.";
  double threshold = 80;
  double rotating = 150, ssd = 500, nvme = 3000;  // MB (1,000,000 bytes) a second that such a disk gives
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"threshold",
         "95th percentile of the rate, in percent of what the disks allow, above which the disks are the limit."},
        threshold, kPercent);
    keys.number({"rotating", "What a rotating disk allows, in MB (1,000,000 bytes) per second."}, rotating,
                {1, 1'000'000});
    keys.number({"ssd", "What a solid-state disk allows, in the same unit."}, ssd, {1, 1'000'000});
    keys.number({"nvme", "What an NVMe disk allows, in the same unit."}, nvme, {1, 1'000'000});
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// Of all counted disks together, bytes a second; empty where the kind of one is not known.
std::optional<double> given(const Machine& machine, const DiskRate& rule) {
  if (!machine.disks || machine.disks->empty()) return std::nullopt;
  double sum_mb = 0;
  for (const Disk& disk : *machine.disks) {
    if (disk.kind == "nvme") {
      sum_mb += rule.nvme;
    } else if (disk.kind == "ssd") {
      sum_mb += rule.ssd;
    } else if (disk.kind == "rotating") {
      sum_mb += rule.rotating;
    } else {
      return std::nullopt;
    }
  }
  return sum_mb * 1e6;
}

}  // namespace

RuleResult DiskRate::judge(const RuleData& data) const {
  return judge_hosts(
      begin_result(
          kWord, "system", "hosts",
          "Compares the rate at which a host's disks are read and written with what disks of their kinds give.",
          "The disks are the limit: keep the data in memory, read it compressed or in larger sequential pieces, "
          "or put it on a faster disk."),
      data.hosts, patience, "what kind of disks the hosts have is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto limit = given(host.machine, *this);
        const auto rates = values_of(judged.samples, [](const HostSample& s) { return s.disk; });
        if (!limit || rates.empty()) return std::nullopt;
        const double p95 = quantile_of(rates, 0.95);
        const double used = 100 * p95 / *limit;
        return HostVerdict{used > threshold,
                           static_cast<std::int64_t>(rates.size()),
                           {{"p95_percent", used}, {"p95_bytes_per_s", p95}, {"given_bytes_per_s", *limit}}};
      });
}

std::unique_ptr<Rule> make_disk_rate() {
  return std::make_unique<RuleOf<DiskRate>>();
}

}  // namespace dtrain::analysis::rules
