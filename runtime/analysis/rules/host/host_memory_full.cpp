// Memory of a host that was nearly full at some time: programs are killed then, and page caches are gone before that.
#include <algorithm>

#include "rules/host/host_rule.h"

namespace dtrain::analysis::rules {
namespace {

struct HostMemoryFull {
  static constexpr const char* kWord = "HostMemoryFull";
  static constexpr const char* kText = "A host's memory that is nearly full.";
  double threshold = 90;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult HostMemoryFull::judge(const RuleData& data) const {
  return judge_hosts(
      begin_result(
          kWord, "system", "hosts",
          "Looks for a host whose memory was nearly full at some time: files are read again and again then, and "
          "a little more gets programs killed.",
          "Read data piece by piece (a Dataset of your own), keep fewer batches ready (LoaderSettings::prefetch), put "
          "dtrain::checkpoint() around layers of the trial's model, or use fewer ranks a host."),
      data.hosts, 0, "how much memory the hosts have is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto total = host.machine.total_memory_bytes;
        const auto free = values_of(judged.samples, [](const HostSample& s) { return s.free_memory_bytes; });
        if (!total || *total <= 0 || free.empty()) return std::nullopt;
        const double least = *std::min_element(free.begin(), free.end());
        const double used = 100 * (1 - least / *total);
        return HostVerdict{used > threshold,
                           static_cast<std::int64_t>(free.size()),
                           {{"most_percent", used}, {"least_free_bytes", least}, {"total_bytes", *total}}};
      });
}

std::unique_ptr<Rule> make_host_memory_full() {
  return std::make_unique<RuleOf<HostMemoryFull>>();
}

}  // namespace dtrain::analysis::rules
