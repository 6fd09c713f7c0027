#include "saver/partial_folder.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

std::string remedy_for(int code) {
  if (code != ENOSPC && code != EDQUOT) return "";
  return "free space there, keep fewer checkpoints, or name another folder as checkpoint_storage";
}

constexpr const char* kBeginFile = ".begin.json";

std::string part_file(int host) {
  return ".host-" + std::to_string(host) + ".json";
}

// Returns the JSON in a file of the folder; empty: the file is missing or not complete yet.
std::optional<Json> read_part(const OpenFolder& folder, const std::string& name) {
  const UniqueFd fd(::openat(folder.fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (!fd) throw SystemError("cannot read " + (folder.path / name).string(), errno);
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == ESTALE) return std::nullopt;
    if (count < 0) throw SystemError("cannot read " + (folder.path / name).string(), errno);
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? std::optional(std::move(json)) : std::nullopt;
}

void write_part(const OpenFolder& folder, const std::string& name, const Json& content) {
  const std::string temporary = name + ".tmp";
  write_small_file(folder, temporary, to_line(content) + "\n");
  if (::renameat(folder.fd.get(), temporary.c_str(), folder.fd.get(), name.c_str()) != 0) {
    fail_to_write(folder.path / name, 0, errno);
  }
}

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

void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code) {
  throw SystemError("cannot write " + path.string() + " at byte " + std::to_string(offset), code, remedy_for(code));
}

void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code) {
  throw SystemError("cannot reserve " + format_bytes(static_cast<double>(bytes)) + " for " + path.string(), code,
                    remedy_for(code));
}

ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text) {
  const auto path = folder.path / name;
  const UniqueFd fd(::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail_to_write(path, 0, errno);
  if (const auto written = write_all(fd.get(), text); written < text.size()) fail_to_write(path, written, errno);
  if (::fsync(fd.get()) != 0) fail_to_write(path, 0, errno);
  ManifestFile file{name, text.size(), {}};
  for (std::size_t at = 0; at < text.size(); at += kPieceBytes) {
    file.checksums.push_back(crc32c(text.substr(at, kPieceBytes)));
  }
  return file;
}

std::string write_beginning(const OpenFolder& folder, const About& about) {
  std::string token = random_hex(16);
  write_part(folder, kBeginFile, {{"token", token}, {"about", to_json(about)}});
  return token;
}

std::optional<Beginning> find_beginning(const std::filesystem::path& partial, const About& about) {
  OpenFolder folder{partial, UniqueFd(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  if (!folder.fd && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (!folder.fd) throw SystemError("cannot open the folder " + partial.string(), errno);
  const auto begin = read_part(folder, kBeginFile);
  if (!begin || begin->value("about", Json()) != to_json(about)) return std::nullopt;
  return Beginning{std::move(folder), begin->value("token", std::string())};
}

void write_host_part(const OpenFolder& folder, const std::string& token, int host,
                     const std::vector<ManifestFile>& files, const std::string& error) {
  Json list = Json::array();
  for (const ManifestFile& file : files) list.push_back(to_json(file));
  write_part(folder, part_file(host), {{"token", token}, {"files", std::move(list)}, {"error", error}});
}

std::optional<std::vector<ManifestFile>> find_host_part(const OpenFolder& folder, const std::string& token, int host) {
  // Opens the folder again, so that a network file system asks its server for the contents.
  const OpenFolder fresh{folder.path, UniqueFd(::open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  if (!fresh.fd) throw SystemError("cannot open the folder " + folder.path.string(), errno);
  const auto part = read_part(fresh, part_file(host));
  if (!part || part->value("token", std::string()) != token) return std::nullopt;
  const std::string on_host = "host " + std::to_string(host) + ": ";
  if (const auto error = part->value("error", std::string()); !error.empty()) throw Error(on_host + error);
  std::vector<ManifestFile> files;
  for (const Json& file : part->at("files")) files.push_back(manifest_file_from(file));
  for (const ManifestFile& file : files) {
    struct stat info {};
    if (::fstatat(fresh.fd.get(), file.name.c_str(), &info, 0) != 0) {
      throw SystemError(on_host + "its file " + (folder.path / file.name).string() + " cannot be read", errno);
    }
    if (static_cast<std::uint64_t>(info.st_size) != file.bytes) {
      throw Error(on_host + "its file " + (folder.path / file.name).string() + " has " + std::to_string(info.st_size) +
                  " bytes as seen from here, instead of " + std::to_string(file.bytes));
    }
  }
  return files;
}

void remove_host_parts(const OpenFolder& folder, int hosts) {
  const auto remove = [&](const std::string& name) {
    if (::unlinkat(folder.fd.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
      throw SystemError("cannot delete " + (folder.path / name).string(), errno);
    }
  };
  remove(kBeginFile);
  for (int host = 1; host < hosts; ++host) remove(part_file(host));
}

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
