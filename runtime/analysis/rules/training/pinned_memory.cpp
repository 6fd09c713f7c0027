// Batches that go to a GPU from memory which the system may move: their copy does not overlap with computing.
#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct PinnedMemory {
  static constexpr const char* kWord = "PinnedMemory";
  static constexpr bool kGpusOnly = true;
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult PinnedMemory::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "model", "ranks",
                   "Looks at whether loaders hand over batches in page-locked (pinned) memory, from "
                   "which copies to a GPU are faster "
                   "and overlap with computing.",
                   "Hand over tensors in page-locked memory: at::Tensor::pin_memory() in a BatchSource of "
                   "your own.");
  if (!has_gpus(data.hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    if (!loader.pinned) {
      ++unknown;
      continue;
    }
    result.datapoints += loader.records;
    result.triggered += *loader.pinned ? 0 : 1;
    all.push_back({{"rank", loader.rank}, {"pinned", *loader.pinned}});
  }
  if (all.empty()) return not_applicable(std::move(result), "whether batches are pinned is not recorded");
  const auto count = static_cast<std::int64_t>(data.loaders.size());
  result.counts = {{"ranks", count},
                   {"not_known", unknown},
                   {"pinned", count - unknown - result.triggered},
                   {"triggered", result.triggered}};
  result.details["ranks"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_pinned_memory() {
  return std::make_unique<RuleOf<PinnedMemory>>();
}

}  // namespace dtrain::analysis::rules
