// What is read from and written to a host's disks against what disks of their kinds give.
#include "rules/host/host_rule.h"
#include "rules/windows.h"

namespace dtrain::analysis::rules {
namespace {

// Of all counted disks together, bytes a second; empty where the kind of one is not known.
std::optional<double> given(const Machine& machine, const Rules::DiskRate& parameters) {
  if (!machine.disks || machine.disks->empty()) return std::nullopt;
  double sum_mb = 0;
  for (const Disk& disk : *machine.disks) {
    if (disk.kind == "nvme") {
      sum_mb += parameters.nvme;
    } else if (disk.kind == "ssd") {
      sum_mb += parameters.ssd;
    } else if (disk.kind == "rotating") {
      sum_mb += parameters.rotating;
    } else {
      return std::nullopt;
    }
  }
  return sum_mb * 1e6;
}

}  // namespace

RuleResult disk_rate(Hosts hosts, const Rules::DiskRate& parameters) {
  return judge_hosts(
      begin_result(
          "DiskRate", "system", "hosts",
          "Compares the rate at which a host's disks are read and written with what disks of their kinds give.",
          "The disks are the limit: keep the data in memory, read it compressed or in larger sequential pieces, "
          "or put it on a faster disk."),
      hosts, parameters.patience, "what kind of disks the hosts have is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto limit = given(host.machine, parameters);
        const auto rates = values_of(judged.samples, [](const HostSample& s) { return s.disk; });
        if (!limit || rates.empty()) return std::nullopt;
        const double p95 = quantile_of(rates, 0.95);
        const double used = 100 * p95 / *limit;
        return HostVerdict{used > parameters.threshold,
                           static_cast<std::int64_t>(rates.size()),
                           {{"p95_percent", used}, {"p95_bytes_per_s", p95}, {"given_bytes_per_s", *limit}}};
      });
}

}  // namespace dtrain::analysis::rules
