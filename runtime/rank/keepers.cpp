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
#include "meeting_place.h"
#include "membership.h"

namespace dtrain::rank {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The deadline of a meeting.
class TooLate : public CommError {
 public:
  using CommError::CommError;
};

// One meeting of the keepers, from the side of one of them.
class Meeting {
 public:
  Meeting(const KeeperOptions& options, const Json& mine, const Keepers::Agree& agree,
          const std::function<void()>& check, std::unique_ptr<WaitingRoom> room)
      : options_(options),
        agree_(agree),
        check_(check),
        secret_(read_run_secret(options.secret_file)),
        mine_({{"name", options.host_name}, {"state", mine}, {"before", options.before}}),
        room_(room ? room->take_place() : nullptr) {}

  struct Result {
    std::unique_ptr<comm::ControlPlane> plane;
    int server = 0;
    std::vector<Json> hosts;  // {"name", "address", "state"} of each; null: it is absent
    Json agreed;
  };

  Result hold() {
    for (;;) {
      std::string why;
      try {
        if (auto result = is_first() || room_ ? serve(why) : find(why)) {
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

  // A host other than 0: joins a meeting where there is one, and holds one itself where it is to.
  std::optional<Result> find(std::string& why) {
    const auto passed = SteadyClock::now() - began_;
    const auto is_skipped = [&](int host) {
      const auto& silent = options_.silent;
      return passed < kSilentAgain && std::find(silent.begin(), silent.end(), host) != silent.end();
    };
    if (!is_skipped(0)) {
      if (auto result = join(options_.node.master.name, why)) return result;
      why = "for host 0: " + why;
    }
    for (std::size_t host = 1; host < options_.addresses.size(); ++host) {
      const int number = static_cast<int>(host);
      const std::string& address = options_.addresses[host];
      if (address.empty() || number == options_.node.rank || is_skipped(number)) continue;
      std::string there;
      if (auto result = join(address, there)) return result;
      if (!there.empty()) why += (why.empty() ? "for host " : ", for host ") + std::to_string(host) + ": " + there;
    }
    if (why.empty()) why = "for the hosts that are left";
    const bool serves = options_.serves_after && passed >= *options_.serves_after && !others_have_gone_on_;
    return serves ? serve(why) : std::nullopt;
  }

  std::optional<Result> serve(std::string& why) {
    const auto opened = SteadyClock::now();
    std::unique_ptr<MeetingPlace> place = room_ ? std::exchange(room_, nullptr) : MeetingPlace::open(options_, secret_);
    was_open_ = true;
    const int self = options_.node.rank;
    mine_["address"] = place->address;
    place->plane->set(key_of_host(self), to_line(mine_));
    for (place->look(kAgain); !is_complete(place->hosts, why) && !is_last_call_over(place->hosts, why);
         place->look(kAgain)) {
      place->plane->set(kMissing, why);
      if (place->plane->failure()) return std::nullopt;  // a keeper has come and is lost: all meet anew
      // Host 0 may be back, and hold a meeting itself.
      if (!is_first() && SteadyClock::now() - opened >= kOthersPatience) return std::nullopt;
      wait(why);
    }
    Result result{.plane = std::move(place->plane), .server = self, .hosts = {}, .agreed = {}};
    std::vector<std::optional<Json>> hosts = std::move(place->hosts);
    place.reset();  // with the store: rank 0 serves the next one, and ranks of other hosts must not reach this one
    return conclude(std::move(result), hosts, why);
  }

  std::optional<Result> conclude(Result result, std::vector<std::optional<Json>>& hosts, std::string& why) {
    std::vector<Json> states;
    std::vector<int> present;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (hosts[host]) states.push_back(hosts[host]->at("state"));
      if (hosts[host]) present.push_back(static_cast<int>(host));
      result.hosts.push_back(hosts[host] ? *std::move(hosts[host]) : Json());
    }
    result.agreed = agree_(states);
    if (options_.claims && !options_.claims(result.agreed, present)) {
      others_have_gone_on_ = true;
      refused_with_ = static_cast<std::ptrdiff_t>(present.size());
      why = "for the hosts that have gone on without it";
      return std::nullopt;
    }
    result.plane->set(kAgreed, to_line({{"hosts", result.hosts}, {"agreed", result.agreed}}));
    return result;
  }

  // Returns true once all hosts have come. `why`: those that have not.
  bool is_complete(const std::vector<std::optional<Json>>& hosts, std::string& why) const {
    std::vector<std::string> missing;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
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
    if (present < options_.node.least || present <= refused_with_) {
      last_call_.reset();
      return false;
    }
    if (!last_call_) last_call_ = now;
    if (const std::string held = options_.holds_back ? options_.holds_back() : std::string(); !held.empty()) {
      last_call_.reset();
      why += "; " + held;
      return false;
    }
    std::size_t before = options_.before;  // a host that was away does not know it
    for (const auto& host : hosts) {
      if (host) before = std::max(before, host->value("before", std::size_t{0}));
    }
    const bool all_again = before > 0 && static_cast<std::size_t>(present) >= before;
    const auto left = *last_call_ + (all_again ? options_.moment : options_.node.last_call) - now;
    why += "; without more, those that are there begin in " +
           format_duration(std::max(left, SteadyClock::duration::zero()));
    return left <= SteadyClock::duration::zero();
  }

  // Joins the meeting at that host. Empty: there is none, and `why` says so.
  std::optional<Result> join(const std::string& name, std::string& why) {
    HostWait there = host_wait(options_);
    there.name = name;
    const std::string address = find_listener(there, why);
    if (address.empty()) return std::nullopt;
    if (said_) {
      options_.log->info("{} has found {} at {} after {}", there.waiter, name, address,
                         format_duration(SteadyClock::now() - began_));
      said_ = false;
    }
    Json contact;
    try {
      const auto store = comm::RendezvousStore::open({.address = address, .port = there.port, .timeout = kAnswer});
      contact = Json::parse(store->get(options_.job_key()));
    } catch (const CommError& error) {
      why = error.what();  // rank 0 may serve the store of the ranks meanwhile
      return std::nullopt;
    }
    const int server = contact.at("server").get<int>();
    const auto endpoint = comm::ControlEndpoint{contact.at("address").get<std::string>(), contact.at("port")};
    auto plane =
        comm::ControlPlane::connect(plane_options(options_, server, contact.at("session").get<std::string>(),
                                                  secret_to_join(secret_, contact.at("secret").get<std::string>())),
                                    endpoint);
    const std::string& interface = options_.network_interface;
    mine_["address"] = interface.empty() ? host::source_address(endpoint.address)
                                         : host::reachable_address(interface, "DTRAIN_NETWORK_INTERFACE");
    plane->set(key_of_host(options_.node.rank), to_line(mine_));
    for (;;) {
      if (const auto told = plane->get_within(kAgreed, kAgain)) {
        const Json agreed = Json::parse(*told);
        if (agreed.at("hosts").at(static_cast<std::size_t>(options_.node.rank)).is_null()) {
          plane->leave();
          why = "the next meeting, as the others have begun without it";
          return std::nullopt;
        }
        return Result{std::move(plane), server, agreed.at("hosts").get<std::vector<Json>>(), agreed.at("agreed")};
      }
      wait(plane->get_within(kMissing, kAgain).value_or("for " + host_text(server, "")));
    }
  }

  static constexpr std::chrono::milliseconds kAgain{100};
  static constexpr std::chrono::milliseconds kAnswer{2'000};  // of a store that is there
  static constexpr std::chrono::seconds kSilentAgain{10};     // then hosts that were silent are looked for, too
  static constexpr std::chrono::seconds kOthersPatience{5};   // of a host that serves in the place of host 0
  static constexpr std::chrono::seconds kFirstLine{2};
  static constexpr std::chrono::seconds kLaterLines{15};
  static constexpr std::chrono::seconds kPortPatience{10};  // ranks that a dead keeper has left may hold the port

  const KeeperOptions& options_;
  const Keepers::Agree& agree_;
  const std::function<void()>& check_;
  const std::string secret_;
  Json mine_;
  std::unique_ptr<MeetingPlace> room_;  // null: none was open, or the meeting was there
  const SteadyClock::time_point began_ = SteadyClock::now();
  SteadyClock::time_point next_line_ = began_ + kFirstLine;
  bool said_ = false;
  bool was_open_ = false;  // host 0's store
  bool others_have_gone_on_ = false;
  std::ptrdiff_t refused_with_ = 0;                   // so many hosts have learned that others have gone on
  std::optional<SteadyClock::time_point> last_call_;  // since when enough hosts are there
};

}  // namespace

std::unique_ptr<Keepers> Keepers::meet(const KeeperOptions& options, const Json& mine, const Agree& agree,
                                       const std::function<void()>& check, std::unique_ptr<WaitingRoom> room) {
  Meeting::Result result = Meeting(options, mine, agree, check, std::move(room)).hold();
  return std::unique_ptr<Keepers>(
      new Keepers(std::move(result.plane), result.server, result.hosts, std::move(result.agreed)));
}

Keepers::Keepers(std::unique_ptr<comm::ControlPlane> plane, int server, const std::vector<Json>& hosts, Json agreed)
    : lost_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      server_(server),
      agreed_(std::move(agreed)),
      plane_(std::move(plane)) {
  if (!lost_fd_) throw SystemError("cannot make an eventfd", errno);
  for (const Json& host : hosts) {
    if (!host.is_null()) present_.push_back(static_cast<int>(names_.size()));
    names_.push_back(host.is_null() ? std::string() : host.at("name").get<std::string>());
    addresses_.push_back(host.is_null() ? std::string() : host.at("address").get<std::string>());
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

std::optional<Keepers::LostHost> Keepers::lost_host() const {
  const auto failure = plane_->failure();
  if (!failure) return std::nullopt;
  return LostHost{.host = failure->rank < 0 ? -1 : host_of_plane_rank(failure->rank, server_),
                  .silent = failure->departure == comm::Departure::kSilent};
}

std::string Keepers::lost() const {
  const auto lost = lost_host();
  if (!lost) return {};
  return (lost->host < 0 ? std::string("a host") : name_of(lost->host)) + " is lost: " +
         (lost->silent ? "it has sent nothing for some seconds" : "the process that keeps its ranks is gone");
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
  const auto has_left = [&](int host) {
    return host == server_ || plane_->peer_state(plane_rank(host, server_)) == comm::PeerState::kFinished;
  };
  const bool serves = plane_->world().rank == 0;
  while (serves && !plane_->failure() && !std::all_of(present_.begin(), present_.end(), has_left)) {
    if (SteadyClock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace dtrain::rank
