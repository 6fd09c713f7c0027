// How the ranks of a run meet: the control plane, who is on which host, the communicator.
#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/hierarchical.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/reachable_address.h"
#include "dtrain/run/agreed_error.h"
#include "folder/host_folder.h"
#include "folder/plan_file.h"
#include "rank/mpi_arrival.h"
#include "rank/rank_session_impl.h"

namespace dtrain::run {
namespace {

// The first rank whose value is not rank 0's.
std::optional<std::size_t> first_other(const std::vector<std::string>& values) {
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) return rank;
  }
  return std::nullopt;
}

Json contact_json(const Contact& contact) {
  return {{"address", contact.address}, {"port", contact.port}, {"secret", contact.secret}};
}

std::string backend_for(config::Backend wanted, std::size_t hosts, int most_on_one) {
  switch (wanted) {
    case config::Backend::kShm:
      return "shm";
    case config::Backend::kMpi:
      return "mpi";
    case config::Backend::kHierarchical:
      return "hierarchical";
    case config::Backend::kAuto:
      break;
  }
  return hosts == 1 ? "shm" : most_on_one == 1 ? "mpi" : "hierarchical";
}

}  // namespace

bool RankSession::Impl::uses_mpi() const {
  const comm::World& world = environment.world;
  if (world.size == 1) return false;
  const bool forced = experiment.communication_backend == config::Backend::kMpi ||
                      experiment.communication_backend == config::Backend::kHierarchical;
  const bool several_hosts = world.local_size < world.size;
  if ((forced || several_hosts) && !environment.has_mpi) {
    const std::string ranks =
        several_hosts ? "ranks on several hosts need" : "communication.backend mpi and hierarchical need";
    throw ConfigError(ranks + " mpirun to start them; these were started by " + environment.started_by,
                      "mpirun -np N --hostfile HOSTS program experiment.yaml; with srun, --mpi=pmix");
  }
  return forced || several_hosts;
}

void RankSession::Impl::connect_ranks() {
  const comm::World& world = environment.world;
  comm::ControlOptions control_options{.world = world, .timeout = experiment.communication_timeout, .log = log};
  if (world.size == 1) {
    control_options.secret = random_hex(32);
    control = comm::ControlPlane::serve(control_options, {}, nullptr);
    return;
  }
  if (uses_mpi()) return connect_through_mpi(std::move(control_options));
  const std::filesystem::path file = is_child() ? environment.handover->rendezvous
                                                : rendezvous_path(private_folder(process_variables()), environment.job);
  control_options.session = file.stem().string();
  if (world.rank == 0) {
    control_options.secret = random_hex(32);
    comm::ControlEndpoint bound;
    control = comm::ControlPlane::serve(control_options, {}, &bound);
    const RendezvousFile contact(file, {bound.address, bound.port, control_options.secret});
    control->barrier("run.connected");  // then nobody needs the file any more
  } else {
    const Contact contact = await_contact(file, experiment.communication_timeout);
    control_options.secret = contact.secret;
    control = comm::ControlPlane::connect(control_options, {contact.address, contact.port});
    control->barrier("run.connected");
  }
}

// MPI carries rank 0's address, and where no launcher has handed out a secret that one too, as clear as everything else
// that MPI carries.
void RankSession::Impl::connect_through_mpi(comm::ControlOptions control_options) {
  const comm::World& world = environment.world;
  const MpiArrival arrival(world, environment.job, plane_link);
  mpi = comm::MpiJob::join(
      {.timeout = experiment.communication_timeout, .missing = [&arrival] { return arrival.missing(); }, .log = log});
  if (mpi->rank() != world.rank || mpi->size() != world.size) {
    throw CommError("mpirun's variables say rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
                        ", MPI itself rank " + std::to_string(mpi->rank()) + " of " + std::to_string(mpi->size()),
                    "the program must find the Open MPI whose mpirun starts it");
  }
  control_options.session = environment.job;
  if (environment.launcher) control_options.secret = environment.launcher->secrets.ranks;
  if (world.rank == 0) {
    try {
      const bool tell_secret = control_options.secret.empty();
      if (tell_secret) control_options.secret = random_hex(32);
      comm::ControlEndpoint bound;
      const bool one_host = world.local_size == world.size;
      const std::string address =
          one_host ? "127.0.0.1" : host::reachable_address(environment.network_interface, "DTRAIN_NETWORK_INTERFACE");
      control = comm::ControlPlane::serve(control_options, {.address = address}, &bound);
      mpi->broadcast(
          to_line(contact_json({bound.address, bound.port, tell_secret ? control_options.secret : std::string()})));
    } catch (const std::exception& error) {
      if (!control) mpi->broadcast(to_line({{"error", describe(error)}}));
      throw;
    }
  } else {
    const Json told = Json::parse(mpi->broadcast({}));
    if (told.contains("error")) throw ConfigError("rank 0 cannot be reached, and says why");
    if (const auto secret = told["secret"].get<std::string>(); !secret.empty()) control_options.secret = secret;
    control = comm::ControlPlane::connect(control_options,
                                          {told["address"].get<std::string>(), told["port"].get<std::uint16_t>()});
  }
  control->barrier("run.connected");
}

void RankSession::Impl::compare_ranks() {
  const comm::World& world = environment.world;
  std::map<std::string, int> ranks_of;
  for (const std::string& text : control->gather("run.hosts", to_line({{"key", host_key}, {"name", host_name}}))) {
    const Json told = Json::parse(text);
    hosts.push_back({told["key"].get<std::string>(), told["name"].get<std::string>()});
    ++ranks_of[hosts.back().key];
  }
  if (!mpi) {
    for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
      if (hosts[rank].key == hosts[0].key) continue;
      throw AgreedError("rank " + std::to_string(rank) + " is on another host (" + hosts[rank].name +
                            ") than rank 0 (" + hosts[0].name + "); " + environment.started_by +
                            " cannot start ranks on several hosts",
                        "start all ranks on one host, or with mpirun");
    }
  }
  const int here = ranks_of[host_key];
  const auto told = control->gather("run.local_sizes", here == world.local_size ? "" : std::to_string(here));
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].empty()) continue;
    throw AgreedError("rank " + std::to_string(rank) + " shares its machine with " + told[rank] +
                          " ranks, counting itself, which is not what " + environment.started_by + " says",
                      "hosts must have names of their own, and be listed under one name each");
  }
  const std::string mine = config::to_json(experiment).dump() + to_string(options.mock);
  const auto experiments = control->gather("run.experiment", std::to_string(std::hash<std::string>{}(mine)));
  if (const auto other = first_other(experiments)) {
    throw AgreedError("rank " + std::to_string(*other) + " was given another experiment than rank 0",
                      "start every rank with the same experiment file, the same --set and the same --mock");
  }
  int most = 0;
  for (const auto& [key, count] : ranks_of) most = std::max(most, count);
  backend = backend_for(experiment.communication_backend, ranks_of.size(), most);
  if (backend == "shm" && ranks_of.size() > 1) {
    throw AgreedError(
        "communication.backend is shm, but the ranks are on " + std::to_string(ranks_of.size()) + " hosts",
        "use auto, mpi or hierarchical");
  }
}

std::vector<int> RankSession::Impl::ranks_of_this_host() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank].key == host_key) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void RankSession::Impl::check_folder_is_shared() {
  std::set<std::string> keys;
  for (const HostOfRank& host : hosts) keys.insert(host.key);
  if (keys.size() == 1) return;
  const std::string name = ".shared-" + random_hex(8);
  const std::filesystem::path mark = folder.path / (is_rank_0() ? name : control->get("run.shared"));
  if (is_rank_0()) {
    std::ofstream(mark).close();
    control->set("run.shared", name);
  }
  const auto seen = control->gather("run.shared", std::filesystem::exists(mark) ? "yes" : "no");
  if (is_rank_0()) std::filesystem::remove(mark);
  if (const auto other = first_other(seen)) {
    throw AgreedError("the run's folder " + folder.path.string() + " of rank 0 (" + hosts[0].name + ") is not on " +
                          hosts[*other].name + ", where rank " + std::to_string(*other) + " runs",
                      "give a folder that all hosts share with --run-dir, under the same path everywhere; or start the "
                      "run with `dtrain launch` and launcher: mpi, which collects what the hosts have written");
  }
}

// Where this host does not see the launcher's folder, its ranks write into one of their own under the same path, which
// the launcher collects in the end.
void RankSession::Impl::open_launched_folder() {
  const LaunchOrders& orders = plane_link->orders();
  folder.path = orders.run_dir;
  has_launchers_folder = is_folder_of(folder, orders.token);
  if (!has_launchers_folder && environment.world.local_rank == 0) {
    make_host_folder(folder, orders.token, orders.plan, orders.experiment);
  }
  control->barrier("run.folder");
}

void RankSession::Impl::report_host(std::int64_t agent_pid) {
  if (plane_link) plane_link->report_host({host_name, has_launchers_folder, agent_pid});
}

std::string RankSession::Impl::agent_id() const {
  if (plane_link) return plane_link->orders().agents[static_cast<std::size_t>(environment.world.rank)];
  for (const HostOfRank& host : hosts) {
    // Two machines of one name: their files must not be one.
    if (host.name == host_name && host.key != host_key) return host_name + "-" + std::to_string(environment.world.rank);
  }
  return host_name;
}

void RankSession::Impl::make_communicator() {
  const comm::CommunicatorOptions options{.timeout = experiment.communication_timeout, .log = log};
  const auto over_shm = [&](comm::ControlPlane& some, const std::vector<int>& members) {
    return comm::make_shm_communicator(some, options, members);
  };
  const auto over_mpi = [&](comm::ControlPlane& some, const std::vector<int>& members) {
    return mpi->make_communicator(some, members, options);
  };
  std::vector<int> all(static_cast<std::size_t>(environment.world.size));
  std::iota(all.begin(), all.end(), 0);
  if (backend == "shm" || environment.world.size == 1) {
    communicator = over_shm(*control, all);
  } else if (backend == "mpi") {
    communicator = over_mpi(*control, all);
  } else {
    communicator = comm::make_hierarchical_communicator(*control, over_shm, over_mpi, options);
  }
  if (!is_rank_0()) return;
  std::set<std::string> keys;
  for (const HostOfRank& host : hosts) keys.insert(host.key);
  update_plan_file(folder.plan(), "communication", {{"backend", communicator->backend()}, {"hosts", keys.size()}});
  if (mpi) log->info("communication: {}, {} ranks on {} hosts", backend, environment.world.size, keys.size());
}

}  // namespace dtrain::run
