#include "link/rendezvous.h"

#include <cctype>
#include <cerrno>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/units.h"
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

}  // namespace dtrain::run
