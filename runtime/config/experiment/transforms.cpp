// The keys `transforms` of a source of pictures or documents.
#include "dtrain/config/model_data.h"

#include <algorithm>
#include <string>

#include "document/section.h"

namespace dtrain::config {
namespace {

constexpr const char* kTransforms = "transforms";
constexpr const char* kKind = "kind";

// Returns the rules of problem_of() for a list, as far as a schema can state them: all are transforms of pictures, the
// first one of a picture by itself, and one gives pictures their size.
Json rules_of_pictures() {
  Json all = Json::array(), first = Json::array(), sizing = Json::array();
  for (const std::string& word : dtrain::words_of<data::Transform>()) {
    const data::Transform transform = dtrain::choice_named<data::Transform>(word);
    const data::TransformStage stage = data::stage_of(transform);
    if (stage != data::TransformStage::kDocuments) all.push_back(word);
    if (stage == data::TransformStage::kPicture) first.push_back(word);
    if (data::size_after(transform, {})) sizing.push_back(word);
  }
  Json with_width = Json::parse(R"({"required": ["width"], "properties": {"width": {"type": "integer"}}})");
  with_width["properties"][kKind]["const"] = data::Resize::kWord;
  Json rules;
  rules["contains"]["anyOf"] = {Json{{"properties", {{kKind, {{"enum", sizing}}}}}}, with_width};
  rules["items"].push_back({{"properties", {{kKind, {{"enum", first}}}}}});
  rules["additionalItems"]["properties"][kKind]["enum"] = all;
  return rules;
}

// Returns the rules of problem_of_documents(): one transform, of documents.
Json rules_of_documents() {
  Json words = Json::array();
  for (const std::string& word : dtrain::words_of<data::Transform>()) {
    const data::Transform transform = dtrain::choice_named<data::Transform>(word);
    if (data::stage_of(transform) == data::TransformStage::kDocuments) words.push_back(word);
  }
  Json rules{{"minItems", 1}, {"maxItems", 1}};
  rules["items"]["properties"][kKind]["enum"] = words;
  return rules;
}

// True if each item names a transform, so that the list can be judged as a whole.
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

Json rules_of_transforms(TransformsOf samples) {
  if (samples == TransformsOf::kNothing) return false;
  return samples == TransformsOf::kPictures ? rules_of_pictures() : rules_of_documents();
}

void declare_keys(Keys& keys, TransformStep& step) {
  keys.one_of({.name = kKind,
               .text = "Which transform. Those of pictures have the names and meanings of torchvision; pad_to_longest "
                       "and pack_tokens are for tokens.",
               .more = "[Transforms](data.md#transforms), [documents](data.md#documents).",
               .required = ""},
              step.transform);
}

void declare_transforms(Keys& keys, std::vector<TransformStep>& steps, TransformsOf samples) {
  keys.list({.name = kTransforms,
             .text = "image_folder, shards: what is done with each picture, in this order. At its end all pictures "
                     "must have one size. tokens: how documents become samples, one transform; without it, every "
                     "sequence_length tokens are a sample, whether or not a document ends there.",
             .examples = R"([[{"kind": "random_resized_crop", "size": 224}, {"kind": "horizontal_flip"}, )"
                         R"({"kind": "normalize"}], [{"kind": "pack_tokens", "end_token": 256}]])",
             .default_text = "required for image_folder and shards"},
            steps);
  keys.when_read([&steps, samples](Section& section) {
    const Value* list = section.find(kTransforms);
    if (!list || list->kind != Value::Kind::kList || !are_named(*list)) return;
    const std::vector<data::Transform> transforms = transforms_of(steps);
    const auto problem =
        samples == TransformsOf::kDocuments ? data::problem_of_documents(transforms) : data::problem_of(transforms);
    if (!problem) return;
    if (list->items.empty()) return section.report(*list, kTransforms, problem->what);
    section.report(list->items[problem->at], kTransforms + ("[" + std::to_string(problem->at) + "]"), problem->what);
  });
}

}  // namespace dtrain::config
