// Ranks of several hosts find each other at MASTER_ADDR.
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/gloo.h"
#include "dtrain/host/network.h"
#include "link/host_names.h"
#include "rank/membership.h"

namespace dtrain::run {
namespace {

constexpr const char* kInterface = "DTRAIN_NETWORK_INTERFACE";
constexpr std::size_t kSecretBytes = 32;

bool is_own(const std::vector<std::string>& addresses, std::string* own) {
  for (const host::InterfaceAddress& one : host::interface_addresses()) {
    for (const std::string& address : addresses) {
      if (one.address != address) continue;
      *own = address;
      return true;
    }
  }
  return false;
}

// Returns the address on which rank 0 is reached: that of MASTER_ADDR if its name resolves already, else that of the
// interface with the default route; of several interfaces without one, the one that the name turns out to mean.
std::string address_of_rank_0(const RankEnvironment& environment, const HostWait& wait) {
  if (!environment.network_interface.empty()) return host::reachable_address(environment.network_interface, kInterface);
  std::string own;
  if (is_own(resolve(wait.name).addresses, &own)) return own;
  try {
    return host::reachable_address("", "");
  } catch (const ConfigError&) {
    return await_own_address(wait);
  }
}

}  // namespace

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
  const bool serves = world.rank == 0 && !master.is_served;
  if (serves) host::check_loopback();
  comm::RendezvousStore::Options store_options{.port = master.port, .serves = serves, .timeout = options.timeout};
  store_options.address = serves ? "127.0.0.1" : await_listener(wait);
  const auto store = comm::RendezvousStore::open(store_options);
  if (world.rank == 0) {
    comm::ControlEndpoint bound;
    try {
      options.secret = random_hex(kSecretBytes);
      const std::string address = address_of_rank_0(environment, wait);
      membership.enter(comm::ControlPlane::serve(options, {.address = address}, &bound));
    } catch (const std::exception& error) {
      store->set(key, to_line({{"error", describe(error)}}));
      throw;
    }
    store->set(key, to_line({{"address", bound.address}, {"port", bound.port}, {"secret", options.secret}}));
    membership.set_address(bound.address);
  } else {
    const Json contact = Json::parse(store->get(key));
    if (contact.contains("error")) throw ConfigError("rank 0 cannot be reached; see the error of rank 0");
    options.secret = contact["secret"].get<std::string>();
    const auto address = contact["address"].get<std::string>();
    membership.enter(comm::ControlPlane::connect(options, {address, contact["port"].get<std::uint16_t>()}));
    membership.set_address(environment.network_interface.empty()
                               ? host::source_address(address)
                               : host::reachable_address(environment.network_interface, kInterface));
  }
  membership.control().barrier(kAllConnected);
}

}  // namespace dtrain::run
