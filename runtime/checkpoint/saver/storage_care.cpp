#include "saver/storage_care.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "storage_folder.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT) throw SystemError("cannot read " + path.string(), errno);
  return false;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw SystemError("cannot rename " + from.string() + " to " + to.filename().string(), errno);
  }
}

// Deletes a folder whose old name is durably gone.
void delete_renamed(const fs::path& folder, std::int64_t step) {
  const fs::path doomed = folder.parent_path() / folder_name(kDeletedPrefix, step);
  delete_tree(doomed);
  rename_folder(folder, doomed);
  delete_tree(doomed);
}

bool same_content(const fs::path& there, const Manifest& manifest) {
  try {
    Manifest old = read_manifest(there);
    old.about.time = manifest.about.time;
    return to_line(to_json(old.about)) == to_line(to_json(manifest.about)) && old.files == manifest.files &&
           verify(there).empty();
  } catch (const Error&) {
    return false;
  }
}

// Exchanges two folders in one step. False: the file system does not support it.
bool exchange(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  throw SystemError("cannot exchange " + one.string() + " and " + other.filename().string(), errno);
}

}  // namespace

void clean_leftovers(const fs::path& storage) {
  std::vector<fs::path> leftovers;
  bool synchronised = false;
  for (const auto& entry : fs::directory_iterator(storage)) {
    const std::string name = entry.path().filename();
    if (step_of(name, kPartialPrefix) || step_of(name, kDeletedPrefix) || step_of(name, kReplacedPrefix)) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) {
    if (const auto step = step_of(path.filename().string(), kReplacedPrefix)) {
      if (is_there(storage / step_folder(*step))) continue;
      rename_folder(path, storage / step_folder(*step));
    }
  }
  for (const fs::path& path : leftovers) {
    if (!is_there(path)) continue;
    // The renames must be durable first: after a power cut no folder may have its old name and only some of its files.
    if (!synchronised) sync_folder(storage);
    synchronised = true;
    if (const auto step = step_of(path.filename().string(), kReplacedPrefix)) {
      delete_renamed(path, *step);
    } else {
      delete_tree(path);
    }
  }
}

OpenFolder make_partial(const fs::path& storage, std::int64_t step) {
  const fs::path path = storage / folder_name(kPartialPrefix, step);
  delete_tree(path);
  if (::mkdir(path.c_str(), 0777) != 0) {
    throw SystemError("cannot make the folder " + path.string(), errno,
                      errno == ENOENT ? "is the disk of " + storage.string() + " still there?" : "");
  }
  OpenFolder folder{path, UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  if (!folder.fd) throw SystemError("cannot open the folder " + path.string(), errno);
  return folder;
}

fs::path publish(const fs::path& storage, const Manifest& manifest) {
  const std::int64_t step = manifest.about.step;
  const fs::path partial = storage / folder_name(kPartialPrefix, step);
  fs::path target = storage / step_folder(step);
  if (!is_there(target)) {
    rename_folder(partial, target);
    sync_folder(storage);
  } else if (same_content(target, manifest)) {
    delete_tree(partial);
  } else if (exchange(partial, target)) {
    sync_folder(storage);
    delete_renamed(partial, step);
  } else {
    const fs::path replaced = storage / folder_name(kReplacedPrefix, step);
    rename_folder(target, replaced);
    sync_folder(storage);
    rename_folder(partial, target);
    sync_folder(storage);
    delete_renamed(replaced, step);
  }
  return target;
}

}  // namespace dtrain::checkpoints
