// The checks of `resources`, and what resources.elastic needs of other keys.
#include "dtrain/config/resources.h"

#include <algorithm>
#include <string>

#include "document/section.h"
#include "document/value.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "experiment/conditions.h"

namespace dtrain::config {
namespace {

constexpr const char* kNoAuto = "a number with elastic, which has to lie between elastic.min and elastic.max";

// Reports an integer that is given and in its own range, but too small or too large beside another one.
void report_number(Section& section, const std::string& path, int is, const std::string& what) {
  const Value* value = section.find_at(path);
  if (value && as_integer(*value).value == is) section.report(*value, path, must_be(what, *value));
}

void check_elastic(Section& section, const Resources& resources) {
  if (!resources.elastic) return;
  const int slots = resources.slots_per_trial, least = resources.elastic->min, most = resources.most_slots();
  if (slots == 0) {
    const Value& value = *section.find("slots_per_trial");
    section.report(value, "slots_per_trial", must_be(kNoAuto, value));
  } else if (most < least) {
    const bool by_max = resources.elastic->max.has_value();
    report_number(section, by_max ? "elastic.max" : "slots_per_trial", most,
                  "at least elastic.min, which is " + std::to_string(least));
  } else if (slots < least) {
    report_number(section, "slots_per_trial", slots, "at least elastic.min, which is " + std::to_string(least));
  } else if (slots > most) {
    report_number(section, "slots_per_trial", slots, "at most elastic.max, which is " + std::to_string(most));
  }
}

}  // namespace

void resolve(Section& section, Resources& resources) {
  const auto& elastic = resources.elastic;
  if (elastic && !section.find("slots_per_trial")) resources.slots_per_trial = elastic->max.value_or(elastic->min);
}

void check_together(Section& section, const Resources& resources) {
  const Value* cores = section.find("cores_per_slot");
  if (resources.slots_per_trial == 0 && resources.cores_per_slot > 0 && cores) {
    section.report(
        *cores, "cores_per_slot",
        must_be("auto with slots_per_trial: auto, which divides all cores; or give the number of slots", *cores));
  }
  check_elastic(section, resources);
  const int slots = resources.slots_per_trial, most = resources.most_slots();
  if (!resources.max_slots || *resources.max_slots >= std::max(slots, most)) return;
  report_number(section, "max_slots", *resources.max_slots,
                *resources.max_slots < slots ? "at least slots_per_trial, which is " + std::to_string(slots)
                                             : "at least elastic.max, which is " + std::to_string(most));
}

void check_elastic(Section& root, const Experiment& experiment) {
  const int most = experiment.resources.most_slots();
  if (!experiment.resources.elastic || experiment.global_batch_size < experiment.resources.slots_per_trial) return;
  if (experiment.global_batch_size > 0 && experiment.global_batch_size < most) {
    root.refuse("resources.elastic.max", "must be at most hyperparameters.global_batch_size, which is " +
                                             std::to_string(experiment.global_batch_size) + ", not " +
                                             std::to_string(most));
  }
}

void refuse_elastic(const Experiment& experiment, const std::string& why, const std::string& remedy) {
  if (!experiment.resources.elastic) return;
  throw ConfigError(experiment.elastic_at + ": resources.elastic: " + why, remedy);
}

void refuse_on_host_loss(const Experiment& experiment, const std::string& why, const std::string& remedy) {
  if (experiment.recovery.on_host_loss == OnHostLoss::kAuto) return;
  throw ConfigError(experiment.on_host_loss_at + ": recovery.on_host_loss: " + why, remedy);
}

// The schema does not compare numbers of different keys.
Json what_elastic_needs() {
  return if_then(is_given("elastic", {{"type", "object"}}), allows({{"slots_per_trial", {{"type", "integer"}}}}));
}

}  // namespace dtrain::config
