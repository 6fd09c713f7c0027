#include "dtrain/config/transforms.h"

#include <algorithm>
#include <string>

#include "document/section.h"

namespace dtrain::config {
namespace {

constexpr const char* kTransforms = "transforms";
constexpr const char* kKind = "kind";

// Keys of one transform against each other.
void check_together(Section& section, const data::Transform& transform) {
  const auto* crop = std::get_if<data::RandomResizedCrop>(&transform);
  if (!crop) return;
  const auto check = [&](const char* key, double least, double most, const char* other) {
    const Value* value = section.find(key);
    if (least <= most) return;
    if (!value) value = section.find(other);
    if (value) section.report(*value, key, std::string("must be at least ") + other);
  };
  check("max_area", crop->min_area, crop->max_area, "min_area");
  check("max_ratio", crop->min_ratio, crop->max_ratio, "min_ratio");
}

// Whether each item names a transform, so that the list can be judged as a whole.
bool are_named(const Value& list) {
  const std::vector<std::string> words = dtrain::words_of<data::Transform>();
  return std::all_of(list.items.begin(), list.items.end(), [&](const Value& item) {
    return item.is_map() && std::any_of(item.entries.begin(), item.entries.end(), [&](const Entry& entry) {
             return entry.key == kKind && entry.value.is_scalar() &&
                    std::find(words.begin(), words.end(), entry.value.text) != words.end();
           });
  });
}

}  // namespace

std::vector<data::Transform> transforms_of(const std::vector<TransformStep>& steps) {
  std::vector<data::Transform> transforms;
  for (const TransformStep& step : steps) transforms.push_back(step.transform);
  return transforms;
}

void declare_keys(Keys& keys, TransformStep& step) {
  keys.one_of({.name = kKind,
               .text = "Which transform. Names and meanings are those of torchvision.",
               .more = "[Transforms](data.md#transforms).",
               .required = ""},
              step.transform);
  keys.when_read([&](Section& section) { check_together(section, step.transform); });
}

void declare_transforms(Keys& keys, std::vector<TransformStep>& steps) {
  keys.list(
      {.name = kTransforms,
       .text = "image_folder, shards: what is done with each picture, in this order. At its end all pictures must "
               "have one size.",
       .examples = R"([[{"kind": "random_resized_crop", "size": 224}, {"kind": "horizontal_flip"}, )"
                   R"({"kind": "normalize"}]])",
       .default_text = "required for image_folder and shards"},
      steps);
  keys.when_read([&](Section& section) {
    const Value* list = section.find(kTransforms);
    if (!list || list->kind != Value::Kind::kList || !are_named(*list)) return;
    const auto problem = data::problem_of(transforms_of(steps));
    if (!problem) return;
    if (list->items.empty()) return section.report(*list, kTransforms, problem->what);
    section.report(list->items[problem->at], kTransforms + ("[" + std::to_string(problem->at) + "]"), problem->what);
  });
}

}  // namespace dtrain::config
