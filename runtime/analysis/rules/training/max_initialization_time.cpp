// The time of a rank from the start of its process to the first step of its training loop.
#include <algorithm>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct MaxInitializationTime {
  static constexpr const char* kWord = "MaxInitializationTime";
  static constexpr const char* kText = "Time until the training loop begins.";
  double threshold = 20;  // minutes
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "The longest time, in minutes."}, threshold, {0, 1'000'000});
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult MaxInitializationTime::judge(const RuleData& data) const {
  RuleResult result = begin_result(kWord, "report", "ranks",
                                   "Compares the time until the training loop begins with a limit in minutes.",
                                   "Starting takes too long: read or fetch data while the training runs instead of "
                                   "before it, keep data on a disk of "
                                   "the host, or prepare it once for all runs.");
  Json all = Json::array();
  double longest_s = 0;
  std::int64_t unfinished = 0;
  for (const InitializationTime& rank : data.initialization) {
    const bool too_long = rank.seconds > 60 * threshold;
    result.triggered += too_long ? 1 : 0;
    unfinished += rank.finished ? 0 : 1;
    longest_s = std::max(longest_s, rank.seconds);
    all.push_back({{"rank", rank.rank}, {"seconds", rank.seconds}, {"finished", rank.finished}});
  }
  result.datapoints = static_cast<std::int64_t>(data.initialization.size());
  if (all.empty()) return not_applicable(std::move(result), "when a rank's process started is not recorded");
  result.counts = {{"ranks", result.datapoints},
                   {"never_began_training", unfinished},
                   {"in_time", result.datapoints - result.triggered},
                   {"triggered", result.triggered}};
  result.details = {{"longest_s", longest_s}, {"ranks", std::move(all)}};
  return result;
}

std::unique_ptr<Rule> make_max_initialization_time() {
  return std::make_unique<RuleOf<MaxInitializationTime>>();
}

}  // namespace dtrain::analysis::rules
