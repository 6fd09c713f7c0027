#include "folder/host_folder.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/host/network.h"
#include "folder/plan_file.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = 256u << 10;

bool holds(const fs::path& file, const std::string& text) {
  std::error_code code;
  return fs::is_regular_file(file, code) && read_file(file, 4096) == text;
}

fs::path token_file(const RunFolder& folder) {
  return folder.launch() / "token";
}

// True for a file itself, not for a link to a file.
bool is_plain_file(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(fs::symlink_status(path, code));
}

// Copies the file and removes it. A rename would fail: the two may be on different file systems.
void move_file(const fs::path& from, const fs::path& to) {
  make_folder(to.parent_path());
  const UniqueFd in(::open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!in || ::fstat(in.get(), &info) != 0) throw SystemError("cannot read " + from.string(), errno);
  const UniqueFd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, info.st_mode & 0777));
  if (!out) throw SystemError("cannot write " + to.string(), errno);
  std::string piece(kPieceBytes, '\0');
  while (const ssize_t count = ::read(in.get(), piece.data(), piece.size())) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("cannot read " + from.string(), errno);
    const auto bytes = static_cast<std::size_t>(count);
    if (write_all(out.get(), std::string_view(piece).substr(0, bytes)) != bytes) {
      throw SystemError("cannot write " + to.string(), errno, "free space on its file system");
    }
  }
  fs::remove(from);
}

void merge_plan(const fs::path& from, const fs::path& to) {
  Json plan = read_json(to);
  const Json theirs = read_json(from);
  for (const auto& [key, value] : theirs.items()) plan[key] = value;
  write_plan_file(to, plan);
}

void add_events(const RunFolder& from, const RunFolder& to) {
  if (!is_plain_file(from.events())) return;
  std::string lines = read_file(from.events());
  if (!lines.empty() && lines.back() != '\n') lines.erase(lines.rfind('\n') + 1);  // an incomplete last line
  if (!lines.empty()) LineAppender(to.events()).append(lines);
  fs::remove(from.events());
}

std::vector<fs::path> move_files(const RunFolder& from, const RunFolder& to) {
  std::vector<fs::path> files;
  std::vector<fs::path> left_out;
  for (const auto& entry : fs::recursive_directory_iterator(from.path)) {
    const fs::path name = entry.path().lexically_relative(from.path);
    if (is_plain_file(entry.path())) {
      files.push_back(name);
    } else if (!fs::is_directory(entry.symlink_status())) {
      left_out.push_back(name);
    }
  }
  for (const fs::path& file : files) move_file(from.path / file, to.path / file);
  return left_out;
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

std::vector<fs::path> merge_folder(const RunFolder& from, const RunFolder& to) {
  try {
    add_events(from, to);
    // Only rank 0 writes metrics and changes the plan.
    if (is_plain_file(from.metrics()) && is_plain_file(from.plan())) merge_plan(from.plan(), to.plan());
    fs::remove(from.plan());
    fs::remove(from.experiment());
    return move_files(from, to);
  } catch (const fs::filesystem_error& error) {
    const fs::path& where = error.path2().empty() ? error.path1() : error.path2();
    throw SystemError("cannot write " + where.string(), error.code().value());
  }
}

}  // namespace dtrain::run
