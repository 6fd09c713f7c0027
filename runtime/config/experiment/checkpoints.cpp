// `checkpoint_storage`: its paths, and the values that follow from its keys together.
#include "dtrain/config/checkpoints.h"

#include <algorithm>

#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;

bool leaves_its_folder(const fs::path& path) {
  return std::find(path.begin(), path.end(), "..") != path.end();
}

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
    if (leaves_its_folder(path)) {
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
  return Json::parse(R"({
    "if": {"properties": {"type": {"const": null}}},
    "then": {
      "properties": {"host_path": false, "storage_path": false, "propagation": false, "container_path": false}
    }
  })");
}

}  // namespace dtrain::config
