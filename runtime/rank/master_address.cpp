// Ranks of several hosts that neither MPI nor a launcher connects find rank 0 at MASTER_ADDR: at the address or the
// name of a host, which may have no name or no listener yet.

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include <sys/socket.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/rendezvous_store.h"
#include "dtrain/host/network.h"
#include "membership.h"

namespace dtrain::rank {

namespace {

constexpr std::chrono::milliseconds kAgain{100};
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
std::string try_to_connect(const std::string& address, std::uint16_t port, std::chrono::milliseconds patience) {
  int code = 0;
  const AddressList found = look_up(address, std::to_string(port), AI_NUMERICHOST | AI_NUMERICSERV, &code);
  if (!found) return ::gai_strerror(code);
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::strerror(errno);
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd events{fd.get(), POLLOUT, 0};
  if (::poll(&events, 1, static_cast<int>(patience.count())) <= 0) {
    return "no answer within " + format_duration(patience);
  }
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? std::string() : std::strerror(error);
}

// Calls `attempt` until it returns an address, or until the deadline. `attempt` sets `why` to the present obstacle.
std::string try_until(const HostWait& wait, const std::string& for_what,
                      const std::function<std::optional<std::string>(std::string& why)>& attempt) {
  const auto began = std::chrono::steady_clock::now();
  auto next_line = began + kFirstLine;
  bool waited = false;
  for (;;) {
    std::string why;
    if (auto address = attempt(why)) {
      if (waited && wait.log) {
        wait.log->info("{} has found {} at {} after {}", wait.waiter, wait.name, *address,
                       format_duration(std::chrono::steady_clock::now() - began));
      }
      return *address;
    }
    const auto now = std::chrono::steady_clock::now();
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

std::string find_listener(const HostWait& wait, std::string& why) {
  const Resolved resolved = resolve(wait.name);
  if (resolved.addresses.empty()) why = "the name " + wait.name + " does not resolve: " + resolved.why;
  for (const std::string& address : resolved.addresses) {
    const std::string problem = try_to_connect(address, wait.port, wait.answer);
    if (problem.empty()) return address;
    why = wait.name + " (" + address + ") port " + std::to_string(wait.port) + ": " + problem;
  }
  return {};
}

std::string await_listener(const HostWait& wait) {
  return try_until(wait, " for rank 0", [&](std::string& why) -> std::optional<std::string> {
    std::string address = find_listener(wait, why);
    return address.empty() ? std::nullopt : std::optional(std::move(address));
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

namespace {

constexpr const char* kInterface = "DTRAIN_NETWORK_INTERFACE";

bool is_own(const std::vector<std::string>& addresses, std::string* own) {
  for (const host::InterfaceAddress& entry : host::interface_addresses()) {
    for (const std::string& address : addresses) {
      if (entry.address != address) continue;
      *own = address;
      return true;
    }
  }
  return false;
}

}  // namespace

// MASTER_ADDR means the address to which its name resolves; if that is none of this host (the name of a service, or no
// name yet), that of the interface that the run uses; of several interfaces without a default route, the one that the
// name turns out to mean.
std::string master_address_here(const std::string& interface, const HostWait& wait) {
  std::string own;
  if (is_own(resolve(wait.name).addresses, &own)) {
    // Some systems map a host's own name to the loopback, which no other host reaches.
    const bool is_loopback = own.starts_with("127.") || own == "::1";
    if (!is_loopback || interface.empty()) return own;
  }
  try {
    return host::reachable_address(interface, kInterface);
  } catch (const ConfigError&) {
    if (!interface.empty()) throw;
    return await_own_address(wait);
  }
}

std::string control_address_here(const std::string& interface, const HostWait& wait) {
  return interface.empty() ? master_address_here(interface, wait) : host::reachable_address(interface, kInterface);
}

std::string hint_of_other_host(const MasterAddress& master) {
  const Resolved resolved = resolve(master.name);
  std::string own;
  const bool loopback = std::ranges::any_of(
      resolved.addresses, [](const std::string& address) { return address.starts_with("127.") || address == "::1"; });
  if (resolved.addresses.empty() || loopback || is_own(resolved.addresses, &own)) return {};
  return "MASTER_ADDR is " + master.name + " (" + join(resolved.addresses, ", ") +
         "), which is no address of this host: for ranks on several hosts set LOCAL_RANK and LOCAL_WORLD_SIZE, as "
         "torchrun "
         "does; without them all ranks are expected on one host";
}

namespace {

constexpr std::chrono::milliseconds kAgentAnswers{2'000};
constexpr const char* kRunDir = "dtrain/run_dir";

std::unique_ptr<comm::RendezvousStore> open_store_of(const MasterAddress& agent) {
  std::string why;
  const std::string address = find_listener({.name = agent.name, .port = agent.port}, why);
  if (address.empty()) throw CommError("the store of torchrun's agent: " + why);
  return comm::RendezvousStore::open({.address = address, .port = agent.port, .timeout = kAgentAnswers});
}

}  // namespace

void remember_folder(const MasterAddress& agent, const std::filesystem::path& run_dir) {
  open_store_of(agent)->set(kRunDir, run_dir.string());
}

std::filesystem::path remembered_folder(const MasterAddress& agent) {
  const auto store = open_store_of(agent);
  return store->has(kRunDir) ? store->get(kRunDir) : std::string();
}

void connect_by_store(Membership& membership, comm::ControlOptions options, const RankEnvironment& environment) {
  const MasterAddress& master = environment.master.value();
  const comm::World& world = options.world;
  HostWait wait{.name = master.name,
                .port = master.port,
                .timeout = options.timeout,
                .waiter = "rank " + std::to_string(world.rank),
                .log = world.local_rank == 0 ? options.log : nullptr};
  options.session = environment.job;
  const std::string key = "dtrain/" + environment.job;
  const bool send_secret = options.secret.empty();  // anybody who reaches the store may read it
  const bool serves = world.rank == 0 && !master.is_served;
  if (serves) host::check_loopback();
  const auto store = comm::RendezvousStore::open(
      {.address = serves ? master_address_here(environment.network_interface, wait) : await_listener(wait),
       .port = master.port,
       .serves = serves,
       .timeout = options.timeout,
       .ranks = world.size});
  if (world.rank == 0) {
    comm::ControlEndpoint bound;
    try {
      if (send_secret) options.secret = random_hex(kSecretBytes);
      const std::string address = control_address_here(environment.network_interface, wait);
      membership.enter(comm::ControlPlane::serve(options, {.address = address}, &bound));
    } catch (const std::exception& error) {
      store->set(key, to_line({{"error", describe(error)}}));
      if (serves) std::this_thread::sleep_for(kOthersLook);  // they read it before the store ends
      throw;
    }
    store->set(key, to_line({{"address", bound.address},
                             {"port", bound.port},
                             {"secret", send_secret ? options.secret : std::string()}}));
    membership.set_address(bound.address);
  } else {
    const Json contact = Json::parse(store->get(key));
    if (contact.contains("error")) throw ConfigError("rank 0 cannot be reached; see the error of rank 0");
    options.secret = secret_to_join(options.secret, contact["secret"].get<std::string>());
    const auto address = contact["address"].get<std::string>();
    membership.enter(comm::ControlPlane::connect(options, {address, contact["port"].get<std::uint16_t>()}));
    membership.set_address(environment.network_interface.empty()
                               ? host::source_address(address)
                               : host::reachable_address(environment.network_interface, kInterface));
  }
  membership.control().barrier(kAllConnected);
  if (world.rank == 0) store->erase(key);  // nobody joins by it any more
}

}  // namespace dtrain::rank
