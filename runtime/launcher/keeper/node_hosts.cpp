#include "keeper/node_hosts.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/host_claims.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/stop_requests.h"

namespace dtrain::launcher {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono_literals::operator""s;

// A host whose keeper has ended may have another one soon. One that has been silent has had its time.
constexpr std::chrono::milliseconds kKeeperPatience = 1s;
// For hosts that are left, of which one alone is known to be lost.
constexpr std::chrono::seconds kLastCall{2};
// Each host waits so long for the one before it, and all of them for host 0 where that is there, to serve the meeting.
constexpr std::chrono::milliseconds kTurn = 3s;
constexpr std::chrono::milliseconds kTurnOfHost0 = 10s;
constexpr std::chrono::seconds kRoomAgain{5};

std::vector<int> without(const std::vector<int>& hosts, const std::vector<int>& others) {
  std::vector<int> result;
  std::set_difference(hosts.begin(), hosts.end(), others.begin(), others.end(), std::back_inserter(result));
  return result;
}

bool contains(const std::vector<int>& hosts, int host) {
  return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
}

}  // namespace

NodeHosts::NodeHosts(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables)
    : plan_(plan), node_(node), variables_(variables), host_name_(host::host_identity().name) {
  names_.resize(static_cast<std::size_t>(node.nodes));
  addresses_.resize(names_.size());
}

std::vector<int> NodeHosts::meet(RunKept& run, const std::function<void()>& check) {
  keepers_.reset();
  if (next_.with_host_0) room_.reset();
  const auto agree = [](const std::vector<Json>& all) {
    const auto known = std::max_element(all.begin(), all.end(), [](const Json& a, const Json& b) {
      return run_kept_of(a).started < run_kept_of(b).started;
    });
    return *known;
  };
  keepers_ = rank::Keepers::meet(options(run), to_json(run), agree, check, std::exchange(room_, nullptr));
  run = run_kept_of(keepers_->agreed());
  present_ = keepers_->present();
  addresses_ = keepers_->addresses();
  for (const int host : present_) {
    names_[static_cast<std::size_t>(host)] = keepers_->names()[static_cast<std::size_t>(host)];
  }
  next_ = {};
  order_ = nullptr;
  // Those train by whose ranks the batch divides.
  std::vector<int> hosts(present_.begin(), present_.begin() + hosts_that_train(plan_, present_.size()));
  take_place(hosts);
  if (decides() && run.started == 0 && !plan_.run_dir.empty()) rank::forget_claims({plan_.run_dir});
  return std::exchange(run.hosts, std::move(hosts));
}

rank::KeeperOptions NodeHosts::options(const RunKept& run) const {
  rank::KeeperOptions options{.node = node_,
                              .host_name = host_name_,
                              .secret_file = {},
                              .network_interface = {},
                              .timeout = plan_.experiment.communication_timeout,
                              .log = make_stderr_logger()};
  if (const std::string* file = rank::find(variables_, "DTRAIN_RUN_SECRET_FILE")) options.secret_file = *file;
  if (const std::string* name = rank::find(variables_, "DTRAIN_NETWORK_INTERFACE")) options.network_interface = *name;
  options.node.least = plan_.numbers_of_hosts.front();
  options.before = next_.before;
  if (run.started == 0) {
    options.holds_back = [run_dir = plan_.run_dir] {
      const auto owner = run_dir.empty() ? std::nullopt : rank::owner_elsewhere(run_dir);
      return owner ? "the run is in progress on " + owner->host : std::string();
    };
    return options;
  }
  if (!shrinks()) {
    options.node.least = std::max(options.node.least, static_cast<int>(run.hosts.size()));
    return options;
  }
  options.node.last_call = std::min(options.node.last_call, kLastCall);
  options.addresses = addresses_;
  for (std::size_t host = 0; host < addresses_.size(); ++host) {
    const bool is_lost = next_.lost && next_.lost->silent && next_.lost->host == static_cast<int>(host);
    const bool is_expected = host == 0 && next_.with_host_0;
    if (is_lost || (addresses_[host].empty() && !is_expected)) options.silent.push_back(static_cast<int>(host));
  }
  if (next_.lost) options.moment = next_.lost->host == 0 ? 0s : patience_with_keeper();
  options.serves_after = serves_after();
  options.claims = [this](const Json& agreed, const std::vector<int>& present) {
    return claim(run_kept_of(agreed), present);
  };
  return options;
}

// The lowest of the hosts that are left serves the meeting, and the others find it there.
std::chrono::milliseconds NodeHosts::serves_after() const {
  const auto is_lost = [this](int host) { return next_.lost && next_.lost->host == host; };
  const auto before = std::count_if(present_.begin(), present_.end(),
                                    [&](int host) { return host != 0 && host < node_.rank && !is_lost(host); });
  std::chrono::milliseconds first{0};
  const bool host_0_was_there = contains(present_, 0);
  if (next_.with_host_0 || (host_0_was_there && !is_lost(0))) {
    first = kTurnOfHost0;
  } else if (host_0_was_there) {
    first = patience_with_keeper();
  }
  return first + before * kTurn;
}

// What is left of the time that the keeper of the lost host has to be there again.
std::chrono::milliseconds NodeHosts::patience_with_keeper() const {
  if (next_.lost->silent) return 0s;
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock::now() - next_.noticed);
  return std::max(kKeeperPatience - passed, std::chrono::milliseconds(0));
}

bool NodeHosts::claim(const RunKept& run, const std::vector<int>& present) const {
  const std::vector<int> gone = without(run.hosts, present);
  if (gone.empty() || run.run_dir.empty()) return true;
  rank::HostClaim claim{.hosts = present, .gone = {}};
  for (const int host : gone) claim.gone.push_back(names_.at(static_cast<std::size_t>(host)));
  try {
    return rank::claim_attempt({run.run_dir}, run.started, claim);
  } catch (const SystemError& error) {
    std::fprintf(stderr, "dtrain: warning: the hosts that are left cannot go on yet: %s\n", describe(error).c_str());
    return false;
  }
}

void NodeHosts::take_place(const std::vector<int>& hosts) {
  const auto here = std::find(hosts.begin(), hosts.end(), node_.rank);
  place_ = node_;
  place_.nodes = static_cast<int>(hosts.size());
  place_.rank = here == hosts.end() ? -1 : static_cast<int>(here - hosts.begin());
  // Rank 0's host, where the ranks meet.
  if (hosts.front() != 0) place_.master.name = addresses_[static_cast<std::size_t>(hosts.front())];
  if (trains()) return;
  std::fprintf(stderr, "dtrain: %s waits for a place: the ranks of %s train, and those of more %s\n",
               keepers_->name_of(node_.rank).c_str(), count_of(place_.nodes, "host").c_str(),
               plan_.experiment.virtual_ranks > 0 ? "are more than the virtual ranks" : "do not divide the batch");
}

bool NodeHosts::decides_without_lost() const {
  const auto first = std::find_if(present_.begin(), present_.end(),
                                  [this](int host) { return !next_.lost || next_.lost->host != host; });
  return first != present_.end() && *first == node_.rank;
}

bool NodeHosts::look_for_others(bool trains_now) {
  if (!decides() || !trains_now || !shrinks() || are_all_present() || !order_.is_null()) return false;
  if (!room_) {
    if (SteadyClock::now() < next_room_) return false;
    try {
      room_ = std::make_unique<rank::WaitingRoom>(options({.started = 1, .run_dir = {}, .cause = {}}));
    } catch (const CommError&) {  // something else listens at the port
      next_room_ = SteadyClock::now() + kRoomAgain;
      return false;
    }
  }
  const auto waiting = room_->waiting();
  if (!waiting) {
    room_.reset();
    return false;
  }
  const bool with_host_0 = room_->host_0_is_back();
  const std::size_t there = present_.size() + waiting->size() + (with_host_0 ? 1 : 0);
  if (hosts_that_train(plan_, there) <= place_.nodes) return false;
  order_ = {{"hosts", there}, {"with_host_0", with_host_0}};
  std::fprintf(stderr, "dtrain: %s: saving after the current step\n", rank::StopRequests::kPaused);
  return true;
}

void NodeHosts::part(const Json& order) {
  next_ = {.before = present_.size(), .lost = {}};
  if (order.is_null()) return;
  next_.before = order.at("hosts").get<std::size_t>();
  next_.with_host_0 = order.at("with_host_0").get<bool>();
}

void NodeHosts::lose(SteadyClock::time_point noticed) {
  next_ = {.before = present_.size(), .lost = keepers_->lost_host(), .noticed = noticed};
  if (next_.lost && next_.before > 0) --next_.before;
}

}  // namespace dtrain::launcher
