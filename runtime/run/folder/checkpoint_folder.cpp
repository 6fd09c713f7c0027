#include "dtrain/run/checkpoint_folder.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/run/run_state.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnerFile = "run.json";  // in the run's folder of the storage: whose checkpoints these are

std::string user_text() {
  const uid_t id = ::geteuid();
  const passwd* const entry = ::getpwuid(id);
  const std::string number = "uid " + std::to_string(id);
  return entry ? "user " + std::string(entry->pw_name) + " (" + number + ")" : number;
}

[[noreturn]] void refuse(const fs::path& path, int code) {
  throw ConfigError(
      "checkpoint_storage: " + user_text() + " cannot write into " + path.string() + ": " + std::strerror(code),
      "make it writable for that user, or name another folder in checkpoint_storage");
}

}  // namespace

void check_checkpoint_storage(const config::CheckpointStorage& storage) {
  if (storage.folder.empty()) return;
  std::error_code code;
  // A folder for all hosts is one that an administrator has mounted. Made here, it would be on this host's own disk.
  if (const fs::path& mount = storage.host_path; !mount.empty() && !fs::is_directory(mount, code)) {
    throw ConfigError("checkpoint_storage.host_path: there is no folder " + mount.string(),
                      "mount it, or make it if it is meant to be on this host's disk; type: directory makes its folder "
                      "itself");
  }
  fs::path there = storage.folder;
  while (!fs::exists(there, code) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, code)) refuse(there, ENOTDIR);
  if (::access(there.c_str(), W_OK | X_OK) != 0) refuse(there, errno);
}

fs::path make_checkpoint_folder(const RunFolder& run, const config::CheckpointStorage& storage) {
  fs::path known = checkpoints::storage_of_run(run.path);
  if (known != run.path / "checkpoints") return known;
  if (storage.folder.empty() || !checkpoints::list(known).empty()) return {};
  check_checkpoint_storage(storage);
  std::error_code code;
  fs::create_directories(storage.folder, code);
  if (code) refuse(storage.folder, code.value());
  fs::path folder;
  do {
    folder = storage.folder / (run.path.filename().string() + "-" + random_hex(4));
    errno = 0;
  } while (::mkdir(folder.c_str(), 0777) != 0 && errno == EEXIST);
  if (errno != 0) refuse(storage.folder, errno);
  try {
    write_file_atomic(folder / kOwnerFile, to_line({{"run", run.path.string()}}) + "\n");
  } catch (const SystemError& error) {
    refuse(storage.folder, error.code());
  }
  checkpoints::write_storage_of_run(run.path, folder);
  return folder;
}

fs::path run_of_checkpoint_folder(const fs::path& folder) {
  std::error_code code;
  if (!fs::is_regular_file(folder / kOwnerFile, code)) return {};
  const Json json = Json::parse(read_file(folder / kOwnerFile), nullptr, false);
  return json.is_object() && json.contains("run") && json["run"].is_string() ? json["run"].get<std::string>() : "";
}

fs::path find_checkpoint_folder(const RunFolder& run) {
  fs::path folder = checkpoints::storage_of_run(run.path);
  std::error_code code;
  // The run has written this file before it wrote down the folder.
  if (folder == run.path / "checkpoints" || fs::exists(folder / kOwnerFile, code)) return folder;
  std::string text = "the checkpoints of the run " + run.path.string() + " are in " + folder.string() +
                     ", which is not there (no " + kOwnerFile + "): is its disk mounted?";
  if (const auto batch = read_state(run).last_saved) text += " The last one was of batch " + std::to_string(*batch);
  throw ConfigError(text, "mount it, or name the folder's new place in " +
                              (run.path / "checkpoints" / "storage.json").string() +
                              "; to begin anew, launch the experiment as a new run");
}

}  // namespace dtrain::run
