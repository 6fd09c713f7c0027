#include "link/rendezvous.h"

#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/processes.h"

namespace dtrain::run {
namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(5);

std::optional<Contact> read_contact(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return std::nullopt;
  std::string text;
  try {
    text = read_file(path, 4096);
  } catch (const SystemError& error) {
    if (error.code() == ENOENT) return std::nullopt;  // removed or replaced meanwhile
    throw;
  }
  try {
    const Json json = Json::parse(text);
    const pid_t pid = json.at("pid").get<pid_t>();
    if (host::start_ticks(pid) != json.at("started").get<std::uint64_t>()) return std::nullopt;  // left by a dead job
    return Contact{json.at("address").get<std::string>(), json.at("port").get<std::uint16_t>(),
                   json.at("secret").get<std::string>()};
  } catch (const Json::exception& error) {
    throw DataError("rendezvous file " + path.string() + ": " + error.what(), "remove the file and start again");
  }
}

}  // namespace

RendezvousFile::RendezvousFile(std::filesystem::path path, const Contact& contact) : path_(std::move(path)) {
  const Json json = {{"address", contact.address},
                     {"port", contact.port},
                     {"secret", contact.secret},
                     {"pid", ::getpid()},
                     {"started", host::start_ticks(::getpid())}};
  const std::string text = to_line(json);
  const std::filesystem::path temporary = path_.string() + "." + std::to_string(::getpid());
  ::unlink(temporary.c_str());
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) throw SystemError("cannot write the rendezvous file " + temporary.string(), errno);
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(temporary.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary.c_str());
    throw SystemError("cannot write the rendezvous file " + path_.string(), code);
  }
}

RendezvousFile::~RendezvousFile() {
  ::unlink(path_.c_str());
}

Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (auto contact = read_contact(path)) return *contact;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw CommError("rank 0 did not write " + path.string() + " within " + format_duration(timeout),
                      "look at rank 0's log: it did not start, or runs as another user or on another host");
    }
    std::this_thread::sleep_for(kPollPeriod);
  }
}

std::filesystem::path rendezvous_path(const std::filesystem::path& folder, const std::string& job) {
  std::string name;
  for (const char letter : job) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) || letter == '-' || letter == '.';
    name += plain ? letter : '_';
  }
  return folder / (name.substr(0, 200) + ".rendezvous");
}

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
