#include "dtrain/comm/host_share.h"

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kTick{50};  // how soon a failure of the run ends a wait

void throw_if_failed(const ControlPlane& control) {
  if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
}

void hand_out(ControlPlane& control, UnixListener& listener, const std::string& name, int fd) {
  const auto deadline = std::chrono::steady_clock::now() + control.timeout();
  for (int served = 1; served < control.world().local_size;) {
    if (auto peer = listener.accept(kTick)) {
      if (peer->send(name, {&fd, 1})) ++served;
      continue;
    }
    throw_if_failed(control);
    if (std::chrono::steady_clock::now() > deadline) {
      throw CommError("'" + name + "' was fetched by " + std::to_string(served) + " of the " +
                      std::to_string(control.world().local_size) + " ranks of this host only");
    }
  }
}

SharedMemory fetch(ControlPlane& control, const std::string& socket, const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + control.timeout();
  UnixSocket source = UnixSocket::connect(socket, std::chrono::seconds(10), [&] { throw_if_failed(control); });
  for (;;) {
    bool timed_out = false;
    if (auto message = source.receive(kTick, &timed_out)) {
      if (message->data != name || message->fds.size() != 1) {
        throw CommError("local rank 0 handed out '" + message->data + "' where '" + name + "' is due");
      }
      return SharedMemory::map(std::move(message->fds[0]), false);
    }
    throw_if_failed(control);
    if (!timed_out) throw CommError("local rank 0 is gone before it handed out '" + name + "'");
    if (std::chrono::steady_clock::now() > deadline)
      throw CommError("local rank 0 did not hand out '" + name + "' in time");
  }
}

}  // namespace

SharedMemory share_on_host(ControlPlane& control, const std::string& name, const std::function<SharedMemory()>& make) {
  const World& world = control.world();
  if (world.local_size == 1) return make();
  const std::string key = "share/" + world.host + "/" + name;
  if (world.local_rank != 0) {
    const Json told = Json::parse(control.get(key), nullptr, false);
    const auto member = [&](const char* what) {
      const auto found = told.is_object() ? told.find(what) : told.end();
      return found != told.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (const auto error = member("error"); !error.empty()) {
      throw CommError("local rank 0 could not make '" + name + "': " + error);
    }
    const auto socket = member("socket");
    if (socket.empty()) throw CommError("local rank 0 does not say where '" + name + "' is: " + to_line(told));
    return fetch(control, socket, name);
  }
  SharedMemory memory;
  try {
    memory = make();
  } catch (const std::exception& error) {
    control.set(key, to_line({{"error", describe(error)}}));
    throw;
  }
  UnixListener listener = UnixListener::create("share");
  control.set(key, to_line({{"socket", listener.name()}}));
  hand_out(control, listener, name, memory.fd());
  return memory;
}

}  // namespace dtrain::comm
