#include "meeting_place.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"

namespace dtrain::rank {
namespace {

constexpr std::chrono::milliseconds kPlaneTime{10'000};  // to connect, and to part
constexpr std::chrono::milliseconds kNow{0};

}  // namespace

std::string key_of_host(int host) {
  return "host/" + std::to_string(host);
}

comm::ControlOptions plane_options(const KeeperOptions& options, int server, const std::string& session,
                                   const std::string& secret) {
  const NodeEnvironment& node = options.node;
  comm::ControlOptions result{.world = {.rank = plane_rank(node.rank, server), .size = node.nodes, .host = {}},
                              .secret = secret,
                              .timeout = kPlaneTime,
                              .host_name = options.host_name,
                              .session = session,
                              .log = options.log};
  result.world.host = host::host_identity().key;
  return result;
}

HostWait host_wait(const KeeperOptions& options) {
  return {.name = options.node.master.name,
          .port = options.node.master.port,
          .timeout = options.timeout,
          .waiter = host_text(options.node.rank, options.host_name),
          .log = options.log};
}

std::unique_ptr<MeetingPlace> MeetingPlace::open(const KeeperOptions& options, const std::string& secret) {
  host::check_loopback();
  const int self = options.node.rank;
  auto place = std::make_unique<MeetingPlace>();
  const std::string own = self == 0 ? std::string() : options.addresses.at(static_cast<std::size_t>(self));
  place->store = comm::RendezvousStore::open(
      {.address = self == 0 ? master_address_here(options.network_interface, host_wait(options)) : own,
       .port = options.node.master.port,
       .serves = true,
       .timeout = options.timeout,
       .ranks = options.node.nodes});
  const std::string session = random_hex(kSecretBytes);
  comm::ControlOptions plane = plane_options(options, self, session, secret);
  const bool send_secret = secret.empty();
  if (send_secret) plane.secret = random_hex(kSecretBytes);
  comm::ControlEndpoint bound;
  place->plane = comm::ControlPlane::serve(
      plane, {.address = self == 0 ? control_address_here(options.network_interface, host_wait(options)) : own},
      &bound);
  place->address = bound.address;
  place->store->set(options.job_key(), to_line({{"server", self},
                                                {"address", bound.address},
                                                {"port", bound.port},
                                                {"session", session},
                                                {"secret", send_secret ? plane.secret : std::string()}}));
  place->hosts.resize(static_cast<std::size_t>(options.node.nodes));
  return place;
}

void MeetingPlace::look(std::chrono::milliseconds patience) {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (hosts[host]) continue;
    const auto told = plane->get_within(key_of_host(static_cast<int>(host)), std::exchange(patience, kNow));
    if (told) hosts[host] = Json::parse(*told);
  }
}

// Looks for a meeting at MASTER_ADDR on a thread of its own, because an absent host may take long not to answer.
class WaitingRoom::Lookout {
 public:
  explicit Lookout(const KeeperOptions& options) : wait_(host_wait(options)), key_(options.job_key()) {
    wait_.answer = kAnswer;
    thread_ = start_thread("the look-out for host 0", [this] { look(); });
  }
  ~Lookout() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  bool sees() const { return sees_; }

 private:
  void look() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kPeriod, [this] { return ends_; })) {
      lock.unlock();
      sees_ = is_there();
      lock.lock();
    }
  }

  bool is_there() const {
    std::string why;
    const std::string address = find_listener(wait_, why);
    if (address.empty()) return false;
    try {
      return comm::RendezvousStore::open({.address = address, .port = wait_.port, .timeout = kAnswer})->has(key_);
    } catch (const CommError&) {
      return false;
    }
  }

  static constexpr std::chrono::milliseconds kPeriod{500};
  static constexpr std::chrono::milliseconds kAnswer{500};
  HostWait wait_;
  const std::string key_;
  std::atomic<bool> sees_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

WaitingRoom::WaitingRoom(const KeeperOptions& options)
    : place_(MeetingPlace::open(options, read_run_secret(options.secret_file))) {
  place_->plane->set(kMissing, "until the run has saved, and goes on with it");
  const bool host_0_is_absent = options.node.rank != 0 && options.addresses.front().empty();
  if (host_0_is_absent) lookout_ = std::make_unique<Lookout>(options);
}

WaitingRoom::~WaitingRoom() = default;

std::unique_ptr<MeetingPlace> WaitingRoom::take_place() {
  return std::move(place_);
}

std::optional<std::vector<int>> WaitingRoom::waiting() {
  if (place_->plane->failure()) return std::nullopt;
  place_->look(kNow);
  std::vector<int> hosts;
  for (std::size_t host = 0; host < place_->hosts.size(); ++host) {
    if (place_->hosts[host]) hosts.push_back(static_cast<int>(host));
  }
  return hosts;
}

bool WaitingRoom::host_0_is_back() const {
  return lookout_ && lookout_->sees();
}

}  // namespace dtrain::rank
