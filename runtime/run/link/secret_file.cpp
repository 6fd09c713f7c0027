#include "link/secret_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kLongestSecret = 4096;

}  // namespace

std::string to_text(const LaunchSecrets& secrets) {
  return secrets.launch + "." + secrets.ranks;
}

SecretFile::SecretFile(std::filesystem::path path, const LaunchSecrets& secrets) : path_(std::move(path)) {
  ::unlink(path_.c_str());
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text = to_text(secrets);
  if (!fd || write_all(fd.get(), text) != text.size()) {
    const int code = errno;
    if (fd) ::unlink(path_.c_str());
    throw SystemError("cannot write " + path_.string() + ", which proves to ranks that they belong to this run", code);
  }
}

SecretFile::~SecretFile() {
  ::unlink(path_.c_str());
}

std::filesystem::path temporary_secret_path() {
  return "/tmp/dtrain-secret-" + random_hex(16);
}

LaunchSecrets read_secret_file(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(
        "the run's secret, " + path.string() + ", " + what,
        "the launcher writes it on every host; with launcher: slurm the run's folder must be one that all "
        "nodes share (--run-dir)");
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) refuse(std::string("cannot be read: ") + std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("is no plain file");
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) refuse("belongs to another user, or is open to others");
  std::string text(kLongestSecret, '\0');
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  return launch_secrets_of(text);
}

}  // namespace dtrain::run
