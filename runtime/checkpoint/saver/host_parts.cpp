#include "saver/host_parts.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {
namespace {

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

}  // namespace

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

}  // namespace dtrain::checkpoints
