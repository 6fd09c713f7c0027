// `checkpoint_storage` and `initial_weights`: their paths, and the values that follow from their keys together.
#include "dtrain/config/checkpoints.h"

#include <algorithm>
#include <string_view>

#include "experiment/conditions.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;

// Returns an absolute path without a slash at the end.
fs::path as_folder(const fs::path& path) {
  const fs::path folder = fs::absolute(path).lexically_normal();
  return folder.has_filename() ? folder : folder.parent_path();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

class StoragePathForm : public KeyType {
 public:
  explicit StoragePathForm(fs::path& path) : path_(path) {}
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given || given->is_null()) return;
    const fs::path path = section.text(key.name, "");
    if (std::find(path.begin(), path.end(), "..") != path.end()) {
      section.report(*given, key.name, must_be("a path inside host_path, without ..", *given));
    } else {
      path_ = path;
    }
  }
  Json to_json() const override { return path_.empty() ? Json() : Json(path_.string()); }
  Json schema(const Key&) const override {
    return Json::parse(R"({
      "type": ["string", "number", "boolean", "null"],
      "not": {"type": "string", "pattern": "^(.*/)?\\.\\.(/.*)?$"}
    })");
  }
  std::string values() const override { return "path or null"; }

 private:
  fs::path& path_;
};

class PropagationForm : public KeyType {
 public:
  void read(Section& section, const Key& key) override {
    const Value* given = section.find(key.name);
    if (!given || given->is_null() || (given->is_scalar() && given->text == kDefault)) return;
    section.report(*given, key.name,
                   must_be(std::string(kDefault) + ", or left out", *given) +
                       ": it sets up a container's bind mount, and ranks are processes of the host");
  }
  Json to_json() const override { return kDefault; }
  Json schema(const Key&) const override { return {{"enum", {kDefault, nullptr}}}; }
  std::string values() const override { return std::string("`") + kDefault + "` or null"; }

 private:
  static constexpr const char* kDefault = "rprivate";
};

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
    if (!value->is_map()) return section.report(*value, key.name, must_be("a mapping of beginnings of names", *value));
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

const TextRule kFolderPath{.schema = R"({"minLength": 1})",
                           .good = [](const std::string& text) { return !text.empty(); },
                           .must_be = "the path of a folder"};

std::unique_ptr<KeyType> storage_path_form(fs::path& path) {
  return std::make_unique<StoragePathForm>(path);
}

std::unique_ptr<KeyType> propagation_form() {
  return std::make_unique<PropagationForm>();
}

void resolve(Section& section, CheckpointStorage& storage) {
  if (storage.type == StorageType::kDirectory && !storage.container_path.empty())
    storage.folder = as_folder(storage.container_path);
  if (storage.type == StorageType::kSharedFs && !storage.host_path.empty()) {
    const fs::path host_path = as_folder(storage.host_path);
    storage.folder = as_folder(host_path / storage.storage_path);
    if (!is_inside(storage.folder, host_path)) {
      const Value* given = section.find("storage_path");
      section.report(
          *given, "storage_path",
          must_be("a relative path, or one that begins with host_path (" + host_path.string() + ")", *given));
    }
  }
  storage.save_trial_best = std::max(storage.save_trial_best, storage.save_experiment_best);
  storage.save_trial_latest = std::max(storage.save_trial_latest, 1);
}

Json storage_needs_type() {
  return if_then(
      allows({{"type", {{"const", nullptr}}}}),
      allows({{"host_path", false}, {"storage_path", false}, {"propagation", false}, {"container_path", false}}));
}

const TextRule kWeightsPath{
    .schema = R"({"minLength": 1, "not": {"type": "string", "pattern": "\\.(pt|pth|bin|ckpt|pkl)$"}})",
    .good = [](const std::string& text) { return !text.empty() && !is_pickle(text); },
    .must_be = "the path of a .safetensors file, a checkpoint or a run",
    .why = why_no_pickle};

void check_together(Section& section, const InitialWeights& weights) {
  if (!weights.training_state) return;
  for (const char* const key : {"strict", "convert_types", "strip_prefix", "rename"}) {
    section.refuse(key, "has no effect with training_state: true, which takes every tensor as it is: leave it out");
  }
}

// Returns the condition of check_together() as a schema.
Json training_state_is_whole() {
  return if_then(is_given("training_state", {{"const", true}}),
                 allows({{"strict", false}, {"convert_types", false}, {"strip_prefix", false}, {"rename", false}}));
}

std::unique_ptr<KeyType> rename_form(Renames& rename) {
  return std::make_unique<RenameForm>(rename);
}

std::unique_ptr<KeyType> initial_weights_form(InitialWeights& weights) {
  return std::make_unique<InitialWeightsForm>(weights);
}

}  // namespace dtrain::config
