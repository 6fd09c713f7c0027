#include "membership.h"

#include <unistd.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <variant>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/rendezvous_store.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/rendezvous.h"

namespace dtrain::rank {

namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr int kMostNamed = 16;
constexpr std::chrono::milliseconds kOthersLook{500};  // their deadlines pass a little later

// Rank 0 sends its contact, or the error that makes it unreachable: the others wait for one of the two.
void serve_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface) {
  const bool send_secret = options.secret.empty();
  if (send_secret) options.secret = random_hex(kSecretBytes);
  const bool one_host = options.world.local_size == options.world.size;
  comm::ControlEndpoint bound;
  try {
    if (one_host) host::check_loopback();
    const std::string address =
        one_host ? "127.0.0.1" : host::reachable_address(network_interface, "DTRAIN_NETWORK_INTERFACE");
    membership.enter(comm::ControlPlane::serve(options, {.address = address}, &bound));
    membership.set_address(bound.address);
  } catch (const std::exception& error) {
    membership.mpi()->broadcast(to_line({{"error", describe(error)}}));
    throw;
  }
  const Json contact = {
      {"address", bound.address}, {"port", bound.port}, {"secret", send_secret ? options.secret : std::string()}};
  membership.mpi()->broadcast(to_line(contact));
}

// Ranks of several hosts find each other at MASTER_ADDR.
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

// Returns the address of this host that MASTER_ADDR means: the one to which its name resolves; if that is none of this
// host (the name of a service, or no name yet), that of the interface that the run uses; of several interfaces without
// a default route, the one that the name turns out to mean.
std::string own_address(const RankEnvironment& environment, const HostWait& wait) {
  std::string own;
  if (is_own(resolve(wait.name).addresses, &own)) {
    // Some systems map a host's own name to the loopback, which no other host reaches.
    const bool is_loopback = own.starts_with("127.") || own == "::1";
    if (!is_loopback || environment.network_interface.empty()) return own;
  }
  try {
    return host::reachable_address(environment.network_interface, kInterface);
  } catch (const ConfigError&) {
    if (!environment.network_interface.empty()) throw;
    return await_own_address(wait);
  }
}

// Returns the address on which rank 0 is reached.
std::string address_of_rank_0(const RankEnvironment& environment, const HostWait& wait) {
  if (!environment.network_interface.empty()) return host::reachable_address(environment.network_interface, kInterface);
  return own_address(environment, wait);
}

}  // namespace

Membership::~Membership() = default;

void Membership::enter(std::unique_ptr<comm::ControlPlane> control) {
  if (mpi_ && control->world().size != mpi_->size()) {
    throw CommError("a generation of " + std::to_string(control->world().size) + " ranks cannot use an MPI job of " +
                    std::to_string(mpi_->size()));
  }
  release_communicators();
  control_ = std::move(control);
  world_ = control_->world();
  if (on_failure_) control_->on_failure(on_failure_);
}

void Membership::make_communicator(const comm::Backend& backend, const comm::CommunicatorOptions& options) {
  comm::BackendParts parts{
      .control = *control_, .members = {}, .mpi = mpi_.get(), .address = address_, .options = options};
  parts.members.resize(static_cast<std::size_t>(world_.size));
  std::iota(parts.members.begin(), parts.members.end(), 0);
  const comm::Backend used = world_.size == 1 ? comm::Backend(comm::ShmBackend()) : backend;
  communicator_ = std::visit([&](const auto& held) { return held.make(parts); }, used);
}

void Membership::make_device_communicator(const comm::NcclOptions& nccl, const comm::CommunicatorOptions& options) {
  device_communicator_ = comm::make_nccl_communicator(*control_, nccl, options);
}

void Membership::release_communicators() {
  device_communicator_.reset();
  communicator_.reset();
}

void Membership::on_failure(std::function<void(const comm::RankFailure&)> callback) {
  on_failure_ = std::move(callback);
  if (control_) control_->on_failure(on_failure_);
}

void connect_alone(Membership& membership, comm::ControlOptions options) {
  options.secret = random_hex(kSecretBytes);
  membership.enter(comm::ControlPlane::serve(options, {}, nullptr));
}

void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file) {
  host::check_loopback();
  options.session = file.stem().string();
  if (options.world.rank == 0) {
    options.secret = random_hex(kSecretBytes);
    comm::ControlEndpoint bound;
    membership.enter(comm::ControlPlane::serve(options, {}, &bound));
    const RendezvousFile contact(file, {bound.address, bound.port, options.secret});
    membership.control().barrier(kAllConnected);  // the other ranks need the file until then
  } else {
    const Contact contact = await_contact(file, options.timeout);
    options.secret = contact.secret;
    membership.enter(comm::ControlPlane::connect(options, {contact.address, contact.port}));
    membership.control().barrier(kAllConnected);
  }
}

void connect_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface) {
  const comm::World& world = options.world;
  comm::MpiJob& mpi = *membership.mpi();
  if (mpi.rank() != world.rank || mpi.size() != world.size) {
    throw CommError("mpirun's variables say rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
                        ", MPI itself rank " + std::to_string(mpi.rank()) + " of " + std::to_string(mpi.size()),
                    "the program must find the Open MPI whose mpirun starts it");
  }
  if (world.rank == 0) {
    serve_by_mpi(membership, std::move(options), network_interface);
  } else {
    const Json contact = Json::parse(mpi.broadcast({}));
    if (contact.contains("error")) throw ConfigError("rank 0 cannot be reached; see the error of rank 0");
    options.secret = secret_to_join(options.secret, contact["secret"].get<std::string>());
    const auto address = contact["address"].get<std::string>();
    membership.enter(comm::ControlPlane::connect(options, {address, contact["port"].get<std::uint16_t>()}));
    membership.set_address(host::source_address(address));
  }
  membership.control().barrier(kAllConnected);
}

bool needs_mpi(const RankEnvironment& environment, const std::optional<comm::Backend>& wanted) {
  const comm::World& world = environment.world;
  if (world.size == 1) return false;
  const bool forced = wanted && comm::needs_mpi(*wanted);
  const bool several_hosts = world.local_size < world.size;
  const std::string by_mpi = "mpirun -np N --hostfile HOSTS program experiment.yaml; with srun, --mpi=pmix";
  if (forced && !environment.has_mpi) {
    throw ConfigError("communication.backend " + join_with_and(comm::words_of_backends(comm::needs_mpi)) +
                          " need mpirun to start them; these were started by " + environment.started_by,
                      by_mpi);
  }
  if (several_hosts && !environment.has_mpi && !environment.master) {
    throw ConfigError(
        "ranks on several hosts need MASTER_ADDR and MASTER_PORT, or mpirun to start them; these were "
        "started by " +
            environment.started_by,
        "set the two to the address of rank 0's host and a free port there; or " + by_mpi);
  }
  return environment.has_mpi && (forced || several_hosts);
}

MpiArrival::MpiArrival(const comm::World& world, const std::string& job, PlaneLink* plane)
    : world_(world), job_(std::to_string(std::hash<std::string>{}(job))), plane_(plane) {
  if (plane_) {
    plane_->enter_mpi();
    return;
  }
  try {
    mark_ = UnixListener::create_named(mark_of(world_.rank));
  } catch (const SystemError&) {
    // The name is taken. A time-out may then list this rank too; nothing else changes.
  }
}

std::string MpiArrival::mark_of(int rank) const {
  return "dtrain-mpi-" + std::to_string(::geteuid()) + "-" + job_ + "-" + std::to_string(rank);
}

bool MpiArrival::has_come(int rank) const {
  if (rank == world_.rank) return true;
  if (plane_) return plane_->has_entered_mpi(rank);
  try {
    (void)UnixSocket::connect(mark_of(rank), std::chrono::milliseconds(0));
    return true;
  } catch (const SystemError&) {
    return false;
  }
}

std::string MpiArrival::missing() const {
  std::string text;
  int named = 0;
  for (int rank = 0; rank < world_.size && named <= kMostNamed; ++rank) {
    if (has_come(rank)) continue;
    if (++named > kMostNamed) {
      text += " and more";
    } else {
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
  }
  if (mark_) std::this_thread::sleep_for(kOthersLook);  // ranks whose deadline comes later still see this one
  if (text.empty()) return "no rank: MPI itself does not start";
  const bool others = !plane_ && world_.local_size < world_.size;
  return others ? text + " (or they are on other hosts, which cannot be seen from here)" : text;
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
  const auto store =
      comm::RendezvousStore::open({.address = serves ? own_address(environment, wait) : await_listener(wait),
                                   .port = master.port,
                                   .serves = serves,
                                   .timeout = options.timeout,
                                   .ranks = world.size});
  if (world.rank == 0) {
    comm::ControlEndpoint bound;
    try {
      if (send_secret) options.secret = random_hex(kSecretBytes);
      const std::string address = address_of_rank_0(environment, wait);
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
