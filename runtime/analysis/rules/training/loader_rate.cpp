// Samples a second that a rank's loader can make against those that its training takes when it never waits for data.
// Both are batches: all workers of the loader at the mean time one takes for a batch, against the mean step without the
// time spent waiting for data.
#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct LoaderRate {
  static constexpr const char* kWord = "LoaderRate";
  static constexpr const char* kText = "A loader that delivers samples more slowly than the training uses them.";
  double threshold = 100;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "The loader's rate, in percent of the training's, must be above this."}, threshold,
                {0, 10'000});
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult LoaderRate::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "system", "ranks",
      "Compares the batches a second that a rank's loader can make with those its training takes where it never waits.",
      "Make reading a sample cheaper: keep the data in memory, prepare it before the training, or read with several "
      "threads "
      "in a BatchSource of your own.");
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    const double computing_s = loader.steps_s - loader.waited_s;
    if (!loader.fetch_s || *loader.fetch_s <= 0 || loader.records == 0 || computing_s <= 0 || loader.workers <= 0) {
      ++unknown;
      continue;
    }
    const double makes = loader.workers / *loader.fetch_s;
    const double takes = static_cast<double>(loader.steps) / computing_s;
    const double share = 100 * makes / takes;
    const bool triggers = share <= threshold;
    result.datapoints += loader.records;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"rank", loader.rank},
                   {"loader_batches_per_s", makes},
                   {"training_batches_per_s", takes},
                   {"percent", share},
                   {"triggered", triggers}});
  }
  if (all.empty()) return not_applicable(std::move(result), "how long loaders took for a batch is not recorded");
  return count_each(std::move(result), "ranks", data.loaders.size(), unknown, std::move(all));
}

std::unique_ptr<Rule> make_loader_rate() {
  return std::make_unique<RuleOf<LoaderRate>>();
}

}  // namespace dtrain::analysis::rules
