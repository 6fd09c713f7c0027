#include "dtrain/config/loader_keys.h"

#include "document/section.h"

namespace dtrain::config {

void check_together(Section& section, const LoaderKeys& loader) {
  const auto refuse = [&](const char* key, const char* why) {
    if (const Value* value = section.find(key)) section.report(*value, key, why);
  };
  if (loader.workers == 0) refuse("prefetch", "has no effect with workers: 0, where nothing is read ahead");
  if (!loader.shuffle) refuse("shuffle_window", "has no effect with shuffle: false");
}

Json what_has_no_effect() {
  return Json::parse(R"({
    "allOf": [
      {
        "if": {"required": ["workers"], "properties": {"workers": {"const": 0}}},
        "then": {"properties": {"prefetch": false}}
      },
      {
        "if": {"required": ["shuffle"], "properties": {"shuffle": {"const": false}}},
        "then": {"properties": {"shuffle_window": false}}
      },
      {"if": {"required": ["max_skipped"]}, "then": {"required": ["on_error"]}}
    ]
  })");
}

}  // namespace dtrain::config
