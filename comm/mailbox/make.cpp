// How the ranks of a world come to have a mailbox.
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "control/subgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/host_share.h"
#include "hierarchical/topology.h"
#include "mailbox/world_mailbox.h"
#include "tcp/meeting.h"

namespace dtrain::comm {
namespace {

struct WorldPlan {
  Placement placement;
  std::string id;  // of this mailbox, the same on all ranks
};

WorldPlan agree(ControlPlane& control) {
  const Json own = {{"host", control.world().host}, {"id", random_hex(8)}};
  std::vector<std::string> hosts;
  std::string id;
  for (const std::string& text : control.gather("comm/mailbox", to_line(own))) {
    const Json theirs = Json::parse(text);
    hosts.push_back(theirs["host"].get<std::string>());
    if (id.empty()) id = theirs["id"].get<std::string>();
  }
  return {Placement(hosts), id};
}

std::shared_ptr<RingMemory> share_memory(const BackendParts& parts, const std::vector<int>& here, const WorldPlan& plan,
                                         const std::vector<int>& members) {
  const World& world = parts.control.world();
  const auto ranks = static_cast<int>(here.size());
  const auto make = [ranks] { return RingMemory::make(ranks); };
  if (ranks == 1) return std::make_shared<RingMemory>(make(), 1, 0);
  const std::string name = "mailbox/" + plan.id + "/" + std::to_string(here.front());
  ControlSubgroup host(parts.control, name, here);
  SharedMemory memory = share_on_host(host, name, make, numbers_in_run(here, members), HostAccess::kWrite);
  const std::size_t me = plan.placement.index_of[static_cast<std::size_t>(world.rank)];
  return std::make_shared<RingMemory>(std::move(memory), ranks, static_cast<int>(me));
}

}  // namespace

std::unique_ptr<Mailbox> make_mailbox(const BackendParts& parts) {
  ControlPlane& control = parts.control;
  const World& world = control.world();
  const WorldPlan plan = agree(control);
  if (plan.placement.hosts.size() > 1 && parts.mpi != nullptr) {
    throw CommError("messages between two ranks do not travel over MPI, and the ranks are on several hosts",
                    "choose the backend tcp");
  }
  MailboxSetup setup{.rank = world.rank,
                     .names = {parts.members},
                     .peer_state = [&control](int rank) { return std::string(name_of(control.peer_state(rank))); },
                     .options = parts.options};
  std::vector<int> members = parts.members;
  if (members.empty()) {
    members.resize(static_cast<std::size_t>(world.size));
    std::iota(members.begin(), members.end(), 0);
  }
  setup.here = plan.placement.hosts[plan.placement.host_of[static_cast<std::size_t>(world.rank)]];
  setup.memory = share_memory(parts, setup.here, plan, members);
  if (plan.placement.hosts.size() > 1) {
    std::vector<bool> elsewhere(static_cast<std::size_t>(world.size), true);
    for (const int rank : setup.here) elsewhere[static_cast<std::size_t>(rank)] = false;
    setup.loop = std::make_shared<EventLoop>();
    setup.sockets = connect_to_ranks({control, members, nullptr, parts.address, parts.options}, elsewhere);
  }
  // The callback may outlive the mailbox.
  control.on_failure([memory = std::weak_ptr(setup.memory), loop = std::weak_ptr(setup.loop)](const RankFailure& why) {
    if (const auto alive = memory.lock()) alive->abort(failure_text(why));
    if (const auto alive = loop.lock()) alive->wake();
  });
  return std::make_unique<WorldMailbox>(std::move(setup), world.size);
}

}  // namespace dtrain::comm
