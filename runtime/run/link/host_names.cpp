#include "link/host_names.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"

namespace dtrain::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAgain{200};
constexpr std::chrono::milliseconds kAnswer{2'000};  // of a host to a connection
constexpr std::chrono::seconds kFirstLine{2};
constexpr std::chrono::seconds kLaterLines{15};

using Found = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Found look_up(const std::string& name, const std::string& port, int flags, int* code) {
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
  const Found found = look_up(address, std::to_string(port), AI_NUMERICHOST | AI_NUMERICSERV, &code);
  if (!found) return ::gai_strerror(code);
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::strerror(errno);
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd one{fd.get(), POLLOUT, 0};
  if (::poll(&one, 1, static_cast<int>(kAnswer.count())) <= 0) return "no answer within " + format_duration(kAnswer);
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
  const Found found = look_up(name, "", 0, &code);
  if (!found) result.why = code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
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

}  // namespace dtrain::run
