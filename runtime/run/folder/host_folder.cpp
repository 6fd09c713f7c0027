#include "folder/host_folder.h"

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/host/identity.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& file, const std::string& text) {
  std::error_code code;
  return fs::is_regular_file(file, code) && read_file(file, 4096) == text;
}

fs::path token_file(const RunFolder& folder) {
  return folder.launch() / "token";
}

}  // namespace

void mark_folder(const RunFolder& folder, const std::string& token) {
  make_folder(folder.launch());
  write_file_atomic(token_file(folder), token);
}

bool is_folder_of(const RunFolder& folder, const std::string& token) {
  return holds(token_file(folder), token);
}

void make_host_folder(const RunFolder& folder, const std::string& token, const std::string& plan,
                      const std::string& experiment) {
  std::error_code code;
  const bool earlier = holds(folder.path / kHostFolderMark, token);
  if (!earlier && fs::exists(folder.path, code) && !fs::is_empty(folder.path, code)) {
    throw ConfigError("the run's folder " + folder.path.string() + " is not shared with host " +
                          host::host_identity().name + ", where there is another folder of that name",
                      "give a folder that all hosts share, or that is new on all of them, with --run-dir");
  }
  if (earlier) fs::remove_all(folder.path, code);
  make_folder(folder.path);
  write_file_atomic(folder.path / kHostFolderMark, token);
  write_file_atomic(folder.plan(), plan);
  write_file_atomic(folder.experiment(), experiment);
  const Json json = Json::parse(plan, nullptr, false);
  if (json.is_object() && json.contains("checkpoint_folder"))
    checkpoints::write_storage_of_run(folder.path, json["checkpoint_folder"].get<std::string>());
  make_folder(folder.logs());
  make_folder(folder.profile());
}

}  // namespace dtrain::run
