// The keys `transforms` of a source of pictures.
#include "dtrain/config/model_data.h"

#include <algorithm>
#include <string>

#include "document/section.h"

namespace dtrain::config {
namespace {

constexpr const char* kTransforms = "transforms";
constexpr const char* kKind = "kind";

// What problem_of() says of a list, as far as a schema can say it: the first transform is one of pictures, and one
// gives pictures their size.
Json rules_of_list() {
  Json first = Json::array(), sizing = Json::array();
  for (const std::string& word : dtrain::words_of<data::Transform>()) {
    const data::Transform transform = dtrain::choice_named<data::Transform>(word);
    if (data::stage_of(transform) == data::TransformStage::kPicture) first.push_back(word);
    if (data::size_after(transform, {})) sizing.push_back(word);
  }
  Json with_width = Json::parse(R"({"required": ["width"], "properties": {"width": {"type": "integer"}}})");
  with_width["properties"][kKind]["const"] = data::Resize::kWord;
  Json rules;
  rules["contains"]["anyOf"] = {Json{{"properties", {{kKind, {{"enum", sizing}}}}}}, with_width};
  rules["items"].push_back({{"properties", {{kKind, {{"enum", first}}}}}});
  return rules;
}

// The type of a list with these rules in its schema.
class ListWithRules : public KeyType {
 public:
  explicit ListWithRules(KeyType& list) : list_(list) {}
  void read(Section& section, const Key& key) override { list_.read(section, key); }
  Json to_json() const override { return list_.to_json(); }
  Json schema(const Key& key) const override {
    Json schema = list_.schema(key);
    schema["allOf"].push_back(rules_of_list());
    return schema;
  }
  std::string values() const override { return list_.values(); }
  void visit_keys(Keys& keys) override { list_.visit_keys(keys); }

 private:
  KeyType& list_;
};

class WithRules : public Keys {
 public:
  explicit WithRules(Keys& keys) : keys_(keys) {}
  void visit(const Key& key, KeyType& type) override {
    ListWithRules with_rules(type);
    keys_.visit(key, with_rules);
  }

 private:
  Keys& keys_;
};

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
}

void declare_transforms(Keys& keys, std::vector<TransformStep>& steps) {
  WithRules visitor(keys);
  visitor.list({.name = kTransforms,
                .text = "image_folder, shards: what is done with each picture, in this order. At its end all pictures "
                        "must have one size.",
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
