#include "membership.h"

#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>
#include <variant>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/handshake.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"

namespace dtrain::rank {

namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(5);
constexpr std::chrono::seconds kContactFirstLine{10};  // of a wait for rank 0
constexpr std::chrono::seconds kContactLaterLines{30};
constexpr std::size_t kLongestSecret = 4096;
constexpr int kMostNamed = 16;
constexpr const char* kOpenToOthers = "belongs to another user, or is open to others";

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

}  // namespace

Membership::~Membership() = default;

void Membership::enter(std::unique_ptr<comm::ControlPlane> control) {
  if (mpi_ && control->world().size != mpi_->size()) {
    throw CommError("a generation of " + std::to_string(control->world().size) + " ranks cannot use an MPI job of " +
                    std::to_string(mpi_->size()));
  }
  release_communicators();
  stopped_.reset();
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

void Membership::watch_for_stopped_ranks(const std::string& host_name, std::chrono::milliseconds patience, Logger log) {
  stopped_ = std::make_unique<StoppedRanks>(*control_, host_name, patience, std::move(log));
}

void Membership::release_communicators() {
  device_communicator_.reset();
  communicator_.reset();
}

void Membership::on_failure(std::function<void(const comm::RankFailure&)> callback) {
  on_failure_ = std::move(callback);
  if (control_) control_->on_failure(on_failure_);
}

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

Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout, const Logger& log,
                      const std::function<std::string()>& hint) {
  const auto began = std::chrono::steady_clock::now();
  auto next_line = began + kContactFirstLine;
  while (true) {
    if (auto contact = read_contact(path)) return *contact;
    const auto now = std::chrono::steady_clock::now();
    const bool over = now - began >= timeout;
    if (over || (log && now >= next_line)) {
      const std::string known = hint ? hint() : std::string();
      if (over) {
        throw CommError("rank 0 did not write " + path.string() + " within " + format_duration(timeout),
                        !known.empty()
                            ? known
                            : "look at rank 0's log: it did not start, or runs as another user or on another host");
      }
      log->info("this rank waits for rank 0 to start on this host ({} so far, at most {}){}",
                format_duration(now - began), format_duration(timeout), known.empty() ? "" : "; " + known);
      next_line = now + kContactLaterLines;
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

void connect_alone(Membership& membership, comm::ControlOptions options) {
  options.secret = random_hex(kSecretBytes);
  membership.enter(comm::ControlPlane::serve(options, {}, nullptr));
}

void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file,
                     const std::function<std::string()>& hint) {
  host::check_loopback();
  options.session = file.stem().string();
  if (options.world.rank == 0) {
    options.secret = random_hex(kSecretBytes);
    comm::ControlEndpoint bound;
    membership.enter(comm::ControlPlane::serve(options, {}, &bound));
    const RendezvousFile contact(file, {bound.address, bound.port, options.secret});
    membership.control().barrier(kAllConnected);  // the other ranks need the file until then
  } else {
    const Contact contact = await_contact(file, options.timeout, options.log, hint);
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

}  // namespace dtrain::rank
