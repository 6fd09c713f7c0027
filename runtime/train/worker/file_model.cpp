#include "worker/file_model.h"

#include "dtrain/base/error.h"
#include "exported/archive.h"
#include "worker/exported_file.h"
#include "worker/script_file.h"
#include "worker/script_model.h"

namespace dtrain::worker {

namespace {

bool is_exported(const std::filesystem::path& file) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(file, code)) return false;
  return file.extension() == ".pt2" || exported::is_exported_program(file);
}

}  // namespace

std::unique_ptr<FileModel> load_model(const std::filesystem::path& file) {
  if (is_exported(file)) return std::make_unique<ExportedFile>(file);
  return std::make_unique<ScriptModel>(file);
}

std::unique_ptr<FileModel> load_eval_model(const std::filesystem::path& file, const FileModel& trained) {
  const auto* script = dynamic_cast<const ScriptModel*>(&trained);
  if (is_exported(file) == (script != nullptr)) {
    throw ConfigError("model: " + file.string() + " is " + (script ? "an exported program" : "TorchScript") +
                          ", and the file to train is " + (script ? "TorchScript" : "an exported program"),
                      "save both from the same model in the same way, once in each mode");
  }
  if (script) return std::make_unique<ScriptModel>(file, *script);
  return std::make_unique<ExportedFile>(file, dynamic_cast<const ExportedFile&>(trained));
}

}  // namespace dtrain::worker
