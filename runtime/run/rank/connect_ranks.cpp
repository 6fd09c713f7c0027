#include "rank/connect_ranks.h"

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/reachable_address.h"
#include "link/rendezvous.h"

namespace dtrain::run {
namespace {

constexpr const char* kConnected = "run.connected";
constexpr std::size_t kSecretBytes = 32;

// Rank 0 sends its contact, or the error that makes it unreachable: the others wait for one of the two.
void serve_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface) {
  const bool send_secret = options.secret.empty();
  if (send_secret) options.secret = random_hex(kSecretBytes);
  const bool one_host = options.world.local_size == options.world.size;
  comm::ControlEndpoint bound;
  try {
    const std::string address =
        one_host ? "127.0.0.1" : host::reachable_address(network_interface, "DTRAIN_NETWORK_INTERFACE");
    membership.enter(comm::ControlPlane::serve(options, {.address = address}, &bound));
  } catch (const std::exception& error) {
    membership.mpi()->broadcast(to_line({{"error", describe(error)}}));
    throw;
  }
  const Json contact = {
      {"address", bound.address}, {"port", bound.port}, {"secret", send_secret ? options.secret : std::string()}};
  membership.mpi()->broadcast(to_line(contact));
}

}  // namespace

void connect_alone(Membership& membership, comm::ControlOptions options) {
  options.secret = random_hex(kSecretBytes);
  membership.enter(comm::ControlPlane::serve(options, {}, nullptr));
}

void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file) {
  options.session = file.stem().string();
  if (options.world.rank == 0) {
    options.secret = random_hex(kSecretBytes);
    comm::ControlEndpoint bound;
    membership.enter(comm::ControlPlane::serve(options, {}, &bound));
    const RendezvousFile contact(file, {bound.address, bound.port, options.secret});
    membership.control().barrier(kConnected);  // the other ranks need the file until then
  } else {
    const Contact contact = await_contact(file, options.timeout);
    options.secret = contact.secret;
    membership.enter(comm::ControlPlane::connect(options, {contact.address, contact.port}));
    membership.control().barrier(kConnected);
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
    const auto secret = contact["secret"].get<std::string>();
    if (!secret.empty()) options.secret = secret;
    membership.enter(comm::ControlPlane::connect(
        options, {contact["address"].get<std::string>(), contact["port"].get<std::uint16_t>()}));
  }
  membership.control().barrier(kConnected);
}

bool needs_mpi(const RankEnvironment& environment, config::Backend wanted) {
  const comm::World& world = environment.world;
  if (world.size == 1) return false;
  const bool forced = wanted == config::Backend::kMpi || wanted == config::Backend::kHierarchical;
  const bool several_hosts = world.local_size < world.size;
  if ((forced || several_hosts) && !environment.has_mpi) {
    const std::string ranks =
        several_hosts ? "ranks on several hosts need" : "communication.backend mpi and hierarchical need";
    throw ConfigError(ranks + " mpirun to start them; these were started by " + environment.started_by,
                      "mpirun -np N --hostfile HOSTS program experiment.yaml; with srun, --mpi=pmix");
  }
  return forced || several_hosts;
}

}  // namespace dtrain::run
