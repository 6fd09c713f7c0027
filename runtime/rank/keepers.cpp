#include "dtrain/rank/keepers.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/rendezvous_store.h"
#include "dtrain/host/network.h"
#include "membership.h"

namespace dtrain::rank {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The deadline of a meeting.
class TooLate : public CommError {
 public:
  using CommError::CommError;
};

std::string host_text(int host, const std::string& name) {
  return "host " + std::to_string(host) + (name.empty() ? "" : " (" + name + ")");
}

std::string key_of(int host) {
  return "host/" + std::to_string(host);
}

// One meeting of the keepers, from the side of one of them.
class Meeting {
 public:
  Meeting(const KeeperOptions& options, const Json& mine, const Keepers::Agree& agree,
          const std::function<void()>& check)
      : options_(options),
        agree_(agree),
        check_(check),
        secret_(read_run_secret(options.secret_file)),
        mine_(to_line({{"name", options.host_name}, {"state", mine}})) {}

  struct Result {
    std::unique_ptr<comm::ControlPlane> plane;
    std::vector<Json> hosts;  // {"name", "state"} of each; null: it is absent
    Json agreed;
  };

  Result hold() {
    for (;;) {
      std::string why;
      try {
        if (auto result = is_first() ? serve(why) : join(why)) {
          if (said_) {
            const auto absent = std::count(result->hosts.begin(), result->hosts.end(), Json());
            options_.log->info("{} hosts of the run have met", result->hosts.size() - static_cast<std::size_t>(absent));
          }
          return *std::move(result);
        }
      } catch (const TooLate&) {
        throw;
      } catch (const CommError& error) {
        if (is_first() && !was_open_ && SteadyClock::now() - began_ >= kPortPatience) throw;
        why = std::string("to meet the others: ") + error.what();
      }
      wait(why);
      std::this_thread::sleep_for(kAgain);
    }
  }

 private:
  bool is_first() const { return options_.node.rank == 0; }
  std::string key() const { return "dtrain/" + options_.node.job() + "/keepers"; }

  // Says what is waited for from time to time. CommError at the deadline.
  void wait(const std::string& why) {
    check_();
    const auto now = SteadyClock::now();
    const std::string waited = format_duration(now - began_);
    const std::string self = host_text(options_.node.rank, options_.host_name);
    if (now - began_ >= options_.timeout) {
      throw TooLate(self + " has waited " + format_duration(options_.timeout) + " " + why,
                    "look at the output of that host, and at PET_MASTER_ADDR (" + options_.node.master.name +
                        "), PET_MASTER_PORT and PET_NODE_RANK; communication.timeout is the deadline");
    }
    if (now < next_line_ || why.empty()) return;
    next_line_ = now + kLaterLines;
    said_ = true;
    options_.log->info("{} waits {} ({} so far, at most {})", self, why, waited, format_duration(options_.timeout));
  }

  comm::ControlOptions plane_options(const std::string& session) const {
    comm::ControlOptions options{.world = {.rank = options_.node.rank, .size = options_.node.nodes, .host = {}},
                                 .secret = secret_,
                                 .timeout = kPlaneTime,
                                 .host_name = options_.host_name,
                                 .session = session,
                                 .log = options_.log};
    options.world.host = host::host_identity().key;
    return options;
  }

  HostWait host_wait() const {
    return {.name = options_.node.master.name,
            .port = options_.node.master.port,
            .timeout = options_.timeout,
            .waiter = host_text(options_.node.rank, options_.host_name),
            .log = options_.log};
  }

  std::optional<Result> serve(std::string& why) {
    host::check_loopback();
    auto store = comm::RendezvousStore::open({.address = master_address_here(options_.network_interface, host_wait()),
                                              .port = options_.node.master.port,
                                              .serves = true,
                                              .timeout = options_.timeout,
                                              .ranks = options_.node.nodes});
    const std::string session = random_hex(kSecretBytes);
    comm::ControlOptions options = plane_options(session);
    const bool send_secret = options.secret.empty();
    if (send_secret) options.secret = random_hex(kSecretBytes);
    comm::ControlEndpoint bound;
    auto plane = comm::ControlPlane::serve(
        options, {.address = control_address_here(options_.network_interface, host_wait())}, &bound);
    was_open_ = true;
    store->set(key(), to_line({{"address", bound.address},
                               {"port", bound.port},
                               {"session", session},
                               {"secret", send_secret ? options.secret : std::string()}}));
    plane->set(key_of(0), mine_);
    std::vector<std::optional<Json>> hosts(static_cast<std::size_t>(options_.node.nodes));
    while (!take_all(*plane, hosts, why) && !is_last_call_over(hosts, why)) {
      plane->set(kMissing, why);
      if (plane->failure()) return std::nullopt;  // a keeper has come and is lost: all meet anew
      wait(why);
    }
    store.reset();  // rank 0 serves the next one, and ranks of other hosts must not reach this one
    Result result{.plane = std::move(plane), .hosts = {}, .agreed = {}};
    std::vector<Json> states;
    for (auto& host : hosts) {
      if (host) states.push_back(host->at("state"));
      result.hosts.push_back(host ? *std::move(host) : Json());
    }
    result.agreed = agree_(states);
    result.plane->set(kAgreed, to_line({{"hosts", result.hosts}, {"agreed", result.agreed}}));
    return result;
  }

  // Returns true once all hosts have come. `why`: those that have not.
  static bool take_all(comm::ControlPlane& plane, std::vector<std::optional<Json>>& hosts, std::string& why) {
    std::vector<std::string> missing;
    bool waited = false;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (!hosts[host]) {
        const auto told = plane.get_within(key_of(static_cast<int>(host)), std::exchange(waited, true) ? kNow : kAgain);
        if (told) hosts[host] = Json::parse(*told);
      }
      if (!hosts[host]) missing.push_back(std::to_string(host));
    }
    why = std::string("for ") + (missing.size() == 1 ? "host " : "hosts ") + dtrain::join(missing, ", ") +
          " (PET_NODE_RANK)";
    return missing.empty();
  }

  // Returns true once the least number of hosts has waited long enough for the others.
  bool is_last_call_over(const std::vector<std::optional<Json>>& hosts, std::string& why) {
    const auto present = std::count_if(hosts.begin(), hosts.end(), [](const auto& host) { return host.has_value(); });
    const auto now = SteadyClock::now();
    if (present < options_.node.least) {
      last_call_.reset();
      return false;
    }
    if (!last_call_) last_call_ = now;
    const bool all_again = options_.before > 0 && static_cast<std::size_t>(present) >= options_.before;
    const auto left = *last_call_ + (all_again ? kMoment : options_.node.last_call) - now;
    why += "; without more, those that are there begin in " +
           format_duration(std::max(left, SteadyClock::duration::zero()));
    return left <= SteadyClock::duration::zero();
  }

  std::optional<Result> join(std::string& why) {
    const std::string address = find_listener(host_wait(), why);
    if (address.empty()) {
      why = "for host 0: " + why;
      return std::nullopt;
    }
    if (said_) {
      options_.log->info("{} has found {} at {} after {}", host_wait().waiter, options_.node.master.name, address,
                         format_duration(SteadyClock::now() - began_));
      said_ = false;
    }
    Json contact;
    try {
      const auto store =
          comm::RendezvousStore::open({.address = address, .port = options_.node.master.port, .timeout = kAnswer});
      contact = Json::parse(store->get(key()));
    } catch (const CommError& error) {
      why = std::string("for host 0: ") + error.what();  // rank 0 may serve the store of the ranks meanwhile
      return std::nullopt;
    }
    comm::ControlOptions options = plane_options(contact.at("session").get<std::string>());
    options.secret = secret_to_join(secret_, contact.at("secret").get<std::string>());
    auto plane = comm::ControlPlane::connect(
        options, {contact.at("address").get<std::string>(), contact.at("port").get<std::uint16_t>()});
    plane->set(key_of(options_.node.rank), mine_);
    for (;;) {
      if (const auto told = plane->get_within(kAgreed, kAgain)) {
        const Json agreed = Json::parse(*told);
        if (agreed.at("hosts").at(static_cast<std::size_t>(options_.node.rank)).is_null()) {
          plane->leave();
          why = "for the next meeting: the others have begun without it";
          return std::nullopt;
        }
        return Result{std::move(plane), agreed.at("hosts").get<std::vector<Json>>(), agreed.at("agreed")};
      }
      wait(plane->get_within(kMissing, kAgain).value_or("for host 0"));
    }
  }

  static constexpr std::chrono::milliseconds kNow{0};
  static constexpr std::chrono::milliseconds kAgain{100};
  static constexpr std::chrono::milliseconds kAnswer{2'000};      // of a store that is there
  static constexpr std::chrono::milliseconds kPlaneTime{10'000};  // to connect, and to part
  static constexpr std::chrono::seconds kMoment{1};               // for hosts that wait for a meeting
  static constexpr std::chrono::seconds kFirstLine{2};
  static constexpr std::chrono::seconds kLaterLines{15};
  static constexpr std::chrono::seconds kPortPatience{10};  // ranks that a dead keeper has left may hold the port
  static constexpr const char* kAgreed = "agreed";
  static constexpr const char* kMissing = "missing";

  const KeeperOptions& options_;
  const Keepers::Agree& agree_;
  const std::function<void()>& check_;
  const std::string secret_;
  const std::string mine_;
  const SteadyClock::time_point began_ = SteadyClock::now();
  SteadyClock::time_point next_line_ = began_ + kFirstLine;
  bool said_ = false;
  bool was_open_ = false;                             // host 0's store
  std::optional<SteadyClock::time_point> last_call_;  // since when enough hosts are there
};

}  // namespace

std::unique_ptr<Keepers> Keepers::meet(const KeeperOptions& options, const Json& mine, const Agree& agree,
                                       const std::function<void()>& check) {
  Meeting::Result result = Meeting(options, mine, agree, check).hold();
  return std::unique_ptr<Keepers>(new Keepers(std::move(result.plane), result.hosts, std::move(result.agreed)));
}

Keepers::Keepers(std::unique_ptr<comm::ControlPlane> plane, const std::vector<Json>& hosts, Json agreed)
    : lost_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), agreed_(std::move(agreed)), plane_(std::move(plane)) {
  if (!lost_fd_) throw SystemError("cannot make an eventfd", errno);
  for (const Json& host : hosts) {
    if (!host.is_null()) present_.push_back(static_cast<int>(names_.size()));
    names_.push_back(host.is_null() ? std::string() : host.at("name").get<std::string>());
  }
  plane_->on_failure([fd = lost_fd_.get()](const comm::RankFailure&) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
  });
}

void Keepers::tell(const std::string& key, const Json& value) {
  plane_->set(key, to_line(value));
}

std::optional<Json> Keepers::hear(const std::string& key, std::chrono::milliseconds patience) {
  const auto told = plane_->get_within(key, patience);
  return told ? std::optional(Json::parse(*told)) : std::nullopt;
}

std::string Keepers::lost() const {
  const auto failure = plane_->failure();
  if (!failure) return {};
  const bool silent = failure->departure == comm::Departure::kSilent;
  return (failure->rank < 0 ? std::string("a host") : name_of(failure->rank)) +
         " is lost: " + (silent ? "it has sent nothing for some seconds" : "the process that keeps its ranks is gone");
}

std::string Keepers::name_of(int host) const {
  return host_text(host, names_.at(static_cast<std::size_t>(host)));
}

void Keepers::leave() {
  if (present_.size() < names_.size()) return leave_without_absent();
  try {
    plane_->finish();
  } catch (const CommError&) {
    // Another host is gone already: all know how the run has ended.
  }
}

// finish() would wait for hosts that have never come.
void Keepers::leave_without_absent() {
  plane_->leave();
  const auto deadline = SteadyClock::now() + plane_->timeout();
  const auto has_left = [&](int host) { return host == 0 || plane_->peer_state(host) == comm::PeerState::kFinished; };
  const bool serves = plane_->world().rank == 0;
  while (serves && !plane_->failure() && !std::all_of(present_.begin(), present_.end(), has_left)) {
    if (SteadyClock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace dtrain::rank
