#include "dtrain/config/initial_weights.h"

#include <algorithm>
#include <string_view>

#include "keys/key_reader.h"
#include "keys/plan_writer.h"
#include "keys/schema_writer.h"

namespace dtrain::config {
namespace {

using Renames = std::vector<std::pair<std::string, std::string>>;

// True if the file is one that torch.save() and others write, which holds code.
bool is_pickle(std::string_view path) {
  constexpr std::array<std::string_view, 5> kEndings{".pt", ".pth", ".bin", ".ckpt", ".pkl"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](auto ending) { return path.ends_with(ending); });
}

std::string why_no_pickle(const std::string& path) {
  if (!is_pickle(path)) return {};
  const std::string converted = std::filesystem::path(path).replace_extension(".safetensors").string();
  return "; pickled files are not read, because loading one may run code: convert it in Python with "
         "safetensors.torch.save_file(torch.load(\"" +
         path + "\", weights_only=True), \"" + converted + "\")";
}

class RenameForm : public KeyType {
 public:
  explicit RenameForm(Renames& rename) : rename_(rename) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value || value->is_null()) return;
    if (!value->is_map()) {
      section.report(*value, key.name, must_be("a mapping of beginnings of names", *value));
      return;
    }
    for (const Entry& entry : value->entries) {
      if (entry.value.is_scalar()) {
        rename_.emplace_back(entry.key, entry.value.text);
      } else {
        section.report(entry.value, join_path(key.name, entry.key), must_be("text", entry.value));
      }
    }
  }
  Json to_json() const override {
    Json json = Json::object();
    for (const auto& [from, to] : rename_) json[from] = to;
    return json;
  }
  Json schema(const Key&) const override {
    return {{"type", {"object", "null"}}, {"additionalProperties", {{"type", {"string", "number", "boolean"}}}}};
  }
  std::string values() const override { return "mapping of texts"; }

 private:
  Renames& rename_;
};

class InitialWeightsForm : public KeyType {
 public:
  explicit InitialWeightsForm(InitialWeights& weights) : weights_(weights) {}

  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value || value->is_null()) return;
    if (!value->is_map()) return read_path(section, key, *value);
    Section inside = section.section(key.name);
    KeyReader::read_all(inside, declare_);
  }
  Json to_json() const override {
    if (weights_.file.empty()) return nullptr;
    InitialWeights plain;
    plain.file = weights_.file;
    return weights_ == plain ? Json(weights_.file.string()) : PlanWriter::write(declare_);
  }
  Json schema(const Key&) const override {
    Json path{{"type", {"string", "number", "boolean", "null"}}};
    path.update(Json::parse(kWeightsPath.schema));
    path.erase("minLength");  // "" is none
    return {{"anyOf", {std::move(path), SchemaWriter::write(declare_)}}};
  }
  std::string values() const override { return "path, or mapping"; }
  void visit_keys(Keys& keys) override { declare_(keys); }

 private:
  void read_path(Section& section, const Key& key, const Value& value) {
    const std::string text = section.text(key.name, "");
    if (text.empty()) return;
    if (!kWeightsPath.good(text)) {
      section.report(value, key.name, must_be(kWeightsPath.must_be, value) + kWeightsPath.why(text));
    }
    weights_.file = (section.folder() / text).lexically_normal();
  }

  InitialWeights& weights_;
  Keys::Declare declare_ = [this](Keys& keys) { declare_keys(keys, weights_); };
};

}  // namespace

const TextRule kWeightsPath{
    .schema = R"({"minLength": 1, "not": {"type": "string", "pattern": "\\.(pt|pth|bin|ckpt|pkl)$"}})",
    .good = [](const std::string& text) { return !text.empty() && !is_pickle(text); },
    .must_be = "the path of a .safetensors file, a checkpoint or a run",
    .why = why_no_pickle};

void check_together(Section& section, const InitialWeights& weights) {
  if (!weights.training_state) return;
  for (const char* const key : {"strict", "convert_types", "strip_prefix", "rename"}) {
    if (const Value* value = section.find(key)) {
      section.report(*value, key,
                     "has no effect with training_state: true, which takes every tensor as it is: leave it out");
    }
  }
}

// Returns the condition of check_together() as a schema.
Json training_state_is_whole() {
  return Json::parse(R"({
    "if": {"required": ["training_state"], "properties": {"training_state": {"const": true}}},
    "then": {"properties": {"strict": false, "convert_types": false, "strip_prefix": false, "rename": false}}
  })");
}

std::unique_ptr<KeyType> rename_form(Renames& rename) {
  return std::make_unique<RenameForm>(rename);
}

std::unique_ptr<KeyType> initial_weights_form(InitialWeights& weights) {
  return std::make_unique<InitialWeightsForm>(weights);
}

}  // namespace dtrain::config
