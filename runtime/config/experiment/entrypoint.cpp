#include "document/split_words.h"
#include "dtrain/config/experiment.h"
#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

class EntrypointForm : public KeyType {
 public:
  explicit EntrypointForm(Experiment& experiment) : experiment_(experiment) {}

  void read(Section& root, const Key& key) override {
    const Value* value = root.find(key.name);
    if (root.find(kModel.name)) return;
    const std::string expected = "a program and its arguments, as text or as a list";
    if (!value) return root.report_missing(key.name, expected + "; or model: the path of a model file");
    auto& words = experiment_.entrypoint;
    if (value->kind == Value::Kind::kList) {
      words = root.texts(key.name);
    } else if (value->is_scalar()) {
      auto cut = split_words(value->text);
      if (!cut) {
        return root.report(*value, key.name, "has a quote or backslash with nothing after it: " + describe(*value));
      }
      words = std::move(*cut);
    } else {
      return root.report(*value, key.name, must_be(expected, *value));
    }
    if (words.empty() || words.front().empty())
      root.report(*value, key.name, "names no program; it must be " + expected);
  }
  Json to_json() const override { return experiment_.entrypoint; }
  Json schema(const Key&) const override {
    return Json::parse(R"({
      "anyOf": [
        {"type": ["string", "number", "boolean"], "pattern": "\\S"},
        {
          "type": "array",
          "minItems": 1,
          "items": [{"type": ["string", "number", "boolean"], "minLength": 1}],
          "additionalItems": {"type": ["string", "number", "boolean"]}
        }
      ]
    })");
  }
  std::string values() const override { return "text or list of texts"; }
  bool in_effect() const override { return !experiment_.model; }

 private:
  Experiment& experiment_;
};

}  // namespace

std::unique_ptr<KeyType> entrypoint_form(Experiment& experiment) {
  return std::make_unique<EntrypointForm>(experiment);
}

}  // namespace dtrain::config
