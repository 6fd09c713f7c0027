// What reproducibility.virtual_ranks needs, and what it does not go together with.
#include <algorithm>
#include <string>

#include "document/section.h"
#include "dtrain/config/experiment.h"
#include "experiment/conditions.h"

namespace dtrain::config {
namespace {

constexpr const char* kVirtualRanks = "reproducibility.virtual_ranks";
constexpr const char* kVirtualThreads = "reproducibility.virtual_rank_threads";
constexpr const char* kNotWithVirtualRanks =
    "is not supported yet with reproducibility.virtual_ranks; leave one of both out";

// Keys that have no effect, whatever their value.
constexpr const char* kOfBuckets[] = {"optimizations.tensor_fusion_threshold",
                                      "optimizations.tensor_fusion_cycle_time"};
constexpr const char* kNoBuckets =
    "has no effect with reproducibility.virtual_ranks, which exchanges gradients after backward; leave it out";

bool is_python_script(const Experiment& experiment) {
  return std::any_of(experiment.entrypoint.begin(), experiment.entrypoint.end(),
                     [](const std::string& word) { return word.ends_with(".py"); });
}

// Returns the keys that ask for something that virtual ranks do not support yet.
std::vector<Refusal> refusals_with_virtual_ranks(const Experiment& experiment) {
  const Optimizations& o = experiment.optimizations;
  std::vector<Refusal> refusals;
  const auto refuse = [&](bool asked, const char* key, const char* why = kNotWithVirtualRanks) {
    if (asked) refusals.push_back({key, why});
  };
  refuse(is_python_script(experiment), "entrypoint",
         "names a Python script with a loop of its own, which reproducibility.virtual_ranks does not support; use a "
         "dtrain.Trial (file.py:Class)");
  refuse(experiment.resources.slot_type == SlotType::kCuda, "resources.slot_type",
         "is cuda, and reproducibility.virtual_ranks does not support GPUs yet; use cpu");
  refuse(experiment.resources.slots_per_trial == 0, "resources.slots_per_trial",
         "must be a number with reproducibility.virtual_ranks, not 'auto'");
  refuse(
      o.sharded_gradients == ShardedGradients::kOn, "optimizations.sharded_gradients",
      "must be auto or false with reproducibility.virtual_ranks, whose processes need the gradients of all parameters");
  refuse(o.local_sgd.has_value(), "optimizations.local_sgd");
  refuse(o.mixed_precision != Precision::kFloat32 && o.mixed_precision != Precision::kBfloat16,
         "optimizations.mixed_precision",
         "must be none or bf16 with reproducibility.virtual_ranks, which does not support others yet");
  refuse(o.auto_tune_tensor_fusion, "optimizations.auto_tune_tensor_fusion", kNoBuckets);
  refuse(!o.average_training_metrics, "optimizations.average_training_metrics",
         "must be true with reproducibility.virtual_ranks: the metrics of one rank depend on the number of ranks");
  refuse(experiment.recovery.seconds_between_states().has_value(), "recovery.interval",
         "asks for states in memory, which are not taken yet with reproducibility.virtual_ranks; use auto or off");
  refuse(experiment.recovery.asks_for_copies(), "recovery.copies",
         "asks for copies of states in memory, which are not taken yet with reproducibility.virtual_ranks; use auto");
  return refusals;
}

}  // namespace

void check_virtual_ranks(Section& root, const Experiment& experiment) {
  const int ranks = experiment.virtual_ranks;
  if (ranks == 0) {
    if (experiment.virtual_rank_threads != 1)
      root.refuse(kVirtualThreads, "has no effect without reproducibility.virtual_ranks");
    return;
  }
  for (const auto& [key, why] : refusals_with_virtual_ranks(experiment)) root.refuse(key, why);
  for (const char* const key : kOfBuckets) root.refuse(key, kNoBuckets);
  const int slots = experiment.resources.slots_per_trial, most = experiment.resources.most_slots();
  if (ranks < std::max(slots, most)) {
    root.refuse(kVirtualRanks, std::string("must be at least resources.") +
                                   (most > slots ? "elastic.max" : "slots_per_trial") + ", which is " +
                                   std::to_string(std::max(slots, most)) + ", not " + std::to_string(ranks));
  }
  if (experiment.global_batch_size % ranks != 0) {
    root.refuse(kVirtualRanks, "must divide hyperparameters.global_batch_size, which is " +
                                   std::to_string(experiment.global_batch_size) + ", not be " + std::to_string(ranks));
  }
}

// The schema does not compare numbers of different keys.
Json what_virtual_ranks_support() {
  const Json not_true{{"enum", {"auto", false, "false"}}};
  const Json ranks = is_given(kVirtualRanks, {{"type", "integer"}, {"minimum", 1}});
  const Json supported = allows({{"resources.slot_type", {{"not", {{"const", "cuda"}}}}},
                                 {"resources.slots_per_trial", {{"type", "integer"}}},
                                 {"optimizations.sharded_gradients", not_true},
                                 {"optimizations.tensor_fusion_threshold", false},
                                 {"optimizations.tensor_fusion_cycle_time", false},
                                 {"optimizations.local_sgd", {{"type", "null"}}},
                                 {"optimizations.mixed_precision", {{"enum", {"O0", "none", "bf16"}}}},
                                 {"optimizations.auto_tune_tensor_fusion", {{"const", false}}},
                                 {"optimizations.average_training_metrics", {{"const", true}}},
                                 {"recovery.interval", {{"enum", {"auto", "off"}}}},
                                 {"recovery.copies", {{"const", "auto"}}}});
  const Json has_threads = is_given(kVirtualThreads, {{"type", "integer"}, {"minimum", 2}});
  return {{"allOf", {if_then(ranks, supported), if_then(has_threads, ranks)}}};
}

}  // namespace dtrain::config
