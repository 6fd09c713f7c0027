#include "dtrain/comm/host_share.h"

#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kShareTick{50};  // time until a failure of the run ends a wait
constexpr std::chrono::milliseconds kHelloTick{1};   // between two looks for the hellos of accepted connections

void throw_if_failed(const ControlPlane& control) {
  if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
}

// Names the ranks of this host for errors.
class LocalNames {
 public:
  LocalNames(const ControlPlane& control, const std::vector<int>& members) : control_(control), members_(members) {}
  std::string of(int local) const {
    const World& world = control_.world();
    const bool same_numbers = members_.empty() && world.local_size == world.size;
    const bool known = same_numbers || static_cast<std::size_t>(local) < members_.size();
    if (!known) return "local rank " + std::to_string(local) + " of host '" + world.host + "'";
    const int rank = same_numbers ? local : members_[static_cast<std::size_t>(local)];
    return "rank " + std::to_string(rank) + " (" + std::string(name_of(control_.peer_state(rank))) + ")";
  }

 private:
  const ControlPlane& control_;
  const std::vector<int>& members_;
};

// Returns the local rank that a message names; -1: no other rank of this host.
int local_rank_of(const UnixMessage& message, int local_size) {
  const int local = to_number<int>(message.data).value_or(-1);
  return local >= 1 && local < local_size ? local : -1;
}

void hand_out(ControlPlane& control, UnixListener& listener, const std::string& name, int fd, const LocalNames& names) {
  const auto deadline = std::chrono::steady_clock::now() + control.timeout();
  const int ranks = control.world().local_size;
  std::set<int> served{0};
  std::vector<UnixSocket> asking;  // have not sent their hello
  while (static_cast<int>(served.size()) < ranks) {
    if (auto peer = listener.accept(asking.empty() ? kShareTick : kHelloTick)) asking.push_back(std::move(*peer));
    for (UnixSocket& peer : asking) {
      bool timed_out = false;
      const auto hello = peer.receive(std::chrono::milliseconds(0), &timed_out);
      if (timed_out) continue;
      const int local = hello ? local_rank_of(*hello, ranks) : -1;
      if (local > 0 && peer.send(name, {&fd, 1})) served.insert(local);
      peer.close();
    }
    std::erase_if(asking, [](const UnixSocket& peer) { return !peer; });
    throw_if_failed(control);
    if (std::chrono::steady_clock::now() <= deadline) continue;
    std::string missing;
    for (int local = 1; local < ranks; ++local) {
      if (!served.contains(local)) missing += (missing.empty() ? "" : ", ") + names.of(local);
    }
    throw TimedOut("'" + name + "' was not fetched by every rank of this host within " +
                   format_duration(control.timeout()) + "; missing: " + missing);
  }
}

SharedMemory fetch(ControlPlane& control, const std::string& socket, const std::string& name, const LocalNames& names,
                   HostAccess access) {
  const auto deadline = std::chrono::steady_clock::now() + control.timeout();
  UnixSocket source = UnixSocket::connect(socket, std::chrono::seconds(10), [&] { throw_if_failed(control); });
  source.send(std::to_string(control.world().local_rank));
  for (;;) {
    bool timed_out = false;
    if (auto message = source.receive(kShareTick, &timed_out)) {
      if (message->data != name || message->fds.size() != 1) {
        throw CommError(names.of(0) + " handed out '" + message->data + "' where '" + name + "' is due");
      }
      return SharedMemory::map(std::move(message->fds[0]), access == HostAccess::kWrite);
    }
    throw_if_failed(control);
    if (!timed_out) throw CommError(names.of(0) + " is gone before it handed out '" + name + "'");
    if (std::chrono::steady_clock::now() > deadline) {
      throw TimedOut("'" + name + "' was not handed out within " + format_duration(control.timeout()) +
                     "; missing: " + names.of(0));
    }
  }
}

}  // namespace

SharedMemory share_on_host(ControlPlane& control, const std::string& name, const std::function<SharedMemory()>& make,
                           const std::vector<int>& members, HostAccess access) {
  const World& world = control.world();
  if (world.local_size == 1) return make();
  const LocalNames names(control, members);
  const std::string key = "share/" + world.host + "/" + name;
  if (world.local_rank != 0) {
    const auto value = control.get_within(key, control.timeout());
    if (!value) {
      throw TimedOut("'" + name + "' was not made within " + format_duration(control.timeout()) +
                     "; missing: " + names.of(0));
    }
    const Json place = Json::parse(*value, nullptr, false);
    const auto member = [&](const char* what) {
      const auto found = place.is_object() ? place.find(what) : place.end();
      return found != place.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (const auto error = member("error"); !error.empty()) {
      throw CommError("local rank 0 could not make '" + name + "': " + error);
    }
    const auto socket = member("socket");
    if (socket.empty()) throw CommError("local rank 0 did not publish where '" + name + "' is: " + to_line(place));
    return fetch(control, socket, name, names, access);
  }
  SharedMemory memory;
  try {
    memory = make();
  } catch (const std::exception& error) {
    control.set(key, to_line({{"error", dtrain::describe(error)}}));
    throw;
  }
  UnixListener listener = UnixListener::create("share");
  control.set(key, to_line({{"socket", listener.name()}}));
  hand_out(control, listener, name, memory.fd(), names);
  return memory;
}

}  // namespace dtrain::comm
