#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include <sys/socket.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/handshake.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/rendezvous.h"

namespace dtrain::rank {

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

// Files with the secrets of a launch.

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

namespace {

// `fault` returns what is wrong with the file's owner and mode; empty: nothing.
std::string read_secret(const std::filesystem::path& path, int flags, const std::string& remedy,
                        const std::function<std::string(const struct stat&)>& fault) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("the run's secret, " + path.string() + ", " + what, remedy);
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  if (!fd) refuse(std::string("cannot be read: ") + std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("is no plain file");
  if (const std::string what = fault(info); !what.empty()) refuse(what);
  std::string text(kLongestSecret + 1, '\0');
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  if (count < 0) refuse(std::string("cannot be read: ") + std::strerror(errno));
  if (count > static_cast<ssize_t>(kLongestSecret)) {
    refuse("has more than " + std::to_string(kLongestSecret) + " bytes");
  }
  text.resize(static_cast<std::size_t>(count));
  return text;
}

constexpr const char* kOpenToOthers = "belongs to another user, or is open to others";

}  // namespace

LaunchSecrets read_secret_file(const std::filesystem::path& path) {
  return launch_secrets_of(
      read_secret(path, O_NOFOLLOW,
                  "the launcher writes it on every host; with launcher: slurm the run's folder must be one that all "
                  "nodes share (--run-dir)",
                  [](const struct stat& info) -> std::string {
                    const bool good = info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
                    return good ? "" : kOpenToOthers;
                  }));
}

std::string read_run_secret(const std::filesystem::path& path) {
  if (path.empty()) return {};
  const std::string remedy =
      "DTRAIN_RUN_SECRET_FILE names it: a file on each host, of this user or of root, with mode 0400 (of root also "
      "0440) "
      "and the same text of at least " +
      std::to_string(comm::kLeastSecret) + " random bytes, such as `openssl rand -hex 32` prints";
  const std::string text = read_secret(path, 0, remedy, [](const struct stat& info) -> std::string {
    const bool mine = info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
    const bool of_root = info.st_uid == 0 && (info.st_mode & 037) == 0;
    return mine || of_root ? "" : kOpenToOthers;
  });
  std::string secret(trimmed(text));
  if (secret.size() < comm::kLeastSecret) {
    throw ConfigError("the run's secret, " + path.string() + ", has " + count_of(secret.size(), "byte") +
                          "; at least " + std::to_string(comm::kLeastSecret) + " are needed",
                      remedy);
  }
  return secret;
}

std::string secret_to_join(const std::string& own, const std::string& told) {
  if (own.empty() != told.empty()) return own + told;
  const std::string who = own.empty() ? "rank 0" : "this rank";
  throw ConfigError(who + " has the run's secret from DTRAIN_RUN_SECRET_FILE, and " +
                        (own.empty() ? "this rank" : "rank 0") + " has not",
                    "set DTRAIN_RUN_SECRET_FILE for all ranks, to files with the same text, or for none");
}

// The host of rank 0, whose name may not resolve yet and which may not listen yet.

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAgain{200};
constexpr std::chrono::milliseconds kAnswer{2'000};  // of a host to a connection
constexpr std::chrono::seconds kFirstLine{2};
constexpr std::chrono::seconds kLaterLines{15};

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList look_up(const std::string& name, const std::string& port, int flags, int* code) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  *code = ::getaddrinfo(name.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  return {*code == 0 ? found : nullptr, ::freeaddrinfo};
}

// Returns the reason why nothing listens there; empty: something listens.
std::string try_to_connect(const std::string& address, std::uint16_t port) {
  int code = 0;
  const AddressList found = look_up(address, std::to_string(port), AI_NUMERICHOST | AI_NUMERICSERV, &code);
  if (!found) return ::gai_strerror(code);
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::strerror(errno);
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd events{fd.get(), POLLOUT, 0};
  if (::poll(&events, 1, static_cast<int>(kAnswer.count())) <= 0) return "no answer within " + format_duration(kAnswer);
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? std::string() : std::strerror(error);
}

// Calls `attempt` until it returns an address, or until the deadline. `attempt` sets `why` to the present obstacle.
std::string try_until(const HostWait& wait, const std::string& for_what,
                      const std::function<std::optional<std::string>(std::string& why)>& attempt) {
  const auto began = Clock::now();
  auto next_line = began + kFirstLine;
  bool waited = false;
  for (;;) {
    std::string why;
    if (auto address = attempt(why)) {
      if (waited && wait.log) {
        wait.log->info("{} has found {} at {} after {}", wait.waiter, wait.name, *address,
                       format_duration(Clock::now() - began));
      }
      return *address;
    }
    const auto now = Clock::now();
    if (now - began >= wait.timeout) {
      throw CommError(wait.waiter + " has waited " + format_duration(wait.timeout) + for_what + ": " + why,
                      "look at the output of rank 0 and at MASTER_ADDR (" + wait.name +
                          ") and MASTER_PORT, which must name rank 0's host; communication.timeout is the deadline");
    }
    if (now >= next_line && wait.log) {
      waited = true;
      next_line = now + kLaterLines;
      wait.log->info("{} waits{}: {} ({} so far, at most {})", wait.waiter, for_what, why, format_duration(now - began),
                     format_duration(wait.timeout));
    }
    std::this_thread::sleep_for(kAgain);
  }
}

}  // namespace

Resolved resolve(const std::string& name) {
  Resolved result;
  int code = 0;
  const AddressList found = look_up(name, "", 0, &code);
  if (!found) result.why = code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
  for (const addrinfo* entry = found.get(); entry; entry = entry->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (std::find(result.addresses.begin(), result.addresses.end(), text) == result.addresses.end()) {
      result.addresses.emplace_back(text);
    }
  }
  return result;
}

std::string await_listener(const HostWait& wait) {
  return try_until(wait, " for rank 0", [&](std::string& why) -> std::optional<std::string> {
    const Resolved resolved = resolve(wait.name);
    if (resolved.addresses.empty()) {
      why = "the name " + wait.name + " does not resolve: " + resolved.why;
      return std::nullopt;
    }
    for (const std::string& address : resolved.addresses) {
      const std::string problem = try_to_connect(address, wait.port);
      if (problem.empty()) return address;
      why = wait.name + " (" + address + ") port " + std::to_string(wait.port) + ": " + problem;
    }
    return std::nullopt;
  });
}

std::string await_own_address(const HostWait& wait) {
  return try_until(wait, " for its own name", [&](std::string& why) -> std::optional<std::string> {
    const Resolved resolved = resolve(wait.name);
    for (const host::InterfaceAddress& own : host::interface_addresses()) {
      const auto& all = resolved.addresses;
      if (std::find(all.begin(), all.end(), own.address) != all.end()) return own.address;
    }
    why = resolved.addresses.empty()
              ? "the name " + wait.name + " does not resolve: " + resolved.why
              : wait.name + " is " + join(resolved.addresses, ", ") + ", which is no address of this host";
    return std::nullopt;
  });
}

}  // namespace dtrain::rank
