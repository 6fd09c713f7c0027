#include "dtrain/config/resources.h"

#include "document/scalar.h"
#include "keys/key_reader.h"

namespace dtrain::config {

void check_together(Section& section, const Resources& resources) {
  const Value* cores = section.find("cores_per_slot");
  if (resources.slots_per_trial == 0 && resources.cores_per_slot > 0 && cores) {
    section.report(
        *cores, "cores_per_slot",
        must_be("auto with slots_per_trial: auto, which divides all cores; or give the number of slots", *cores));
  }
  if (!resources.max_slots || *resources.max_slots >= resources.slots_per_trial) return;
  const Value& value = *section.find("max_slots");
  if (as_integer(value).value != *resources.max_slots) return;  // reported already
  section.report(value, "max_slots",
                 must_be("at least slots_per_trial, which is " + std::to_string(resources.slots_per_trial), value));
}

}  // namespace dtrain::config
