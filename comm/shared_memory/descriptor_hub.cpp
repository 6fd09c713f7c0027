#include "shared_memory/descriptor_hub.h"

#include <algorithm>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kHubTick{20};
constexpr int kInFlight = 16;  // file descriptors that have not been received yet
constexpr const char* kDescriptor = "this";
constexpr const char* kReceived = "received";
constexpr const char* kHere = "here";
constexpr const char* kAllHere = "all here";

int parse_rank(const std::string& text, int world_size) {
  const int rank = to_number<int>(text).value_or(-1);
  return rank >= 1 && rank < world_size ? rank : -1;
}

}  // namespace

WaitCheck setup_check(ControlPlane& control, const CommunicatorOptions& options, const std::string& what) {
  // Rank 0 can name the missing ranks, so it reports first.
  const auto deadline = std::chrono::steady_clock::now() + options.timeout +
                        (control.world().rank == 0 ? std::chrono::milliseconds(0) : kRankZeroHeadStart);
  return [&control, what, deadline, timeout = options.timeout](const std::function<std::string()>& missing) {
    if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
    if (std::chrono::steady_clock::now() > deadline) {
      throw TimedOut(what + " could not be set up within " + format_duration(timeout) + "; missing: " + missing());
    }
  };
}

DescriptorHub::DescriptorHub(ControlPlane& control, const WaitCheck& check, RankNames names, const std::string& arena)
    : control_(control),
      names_(std::move(names)),
      rank_(control.world().rank),
      world_size_(control.world().size),
      sockets_(rank_ == 0 ? static_cast<std::size_t>(world_size_) : 1) {
  std::optional<UnixListener> listener;
  if (rank_ == 0) listener = UnixListener::create("comm");
  const auto hosts = control.gather("comm/shm", to_line({{"host", control.world().host},
                                                         {"socket", listener ? listener->name() : std::string()},
                                                         {"arena", arena}}));
  const Json first = Json::parse(hosts[0]);
  for (std::size_t r = 1; r < hosts.size(); ++r) {
    const Json other = Json::parse(hosts[r]);
    if (other["host"] != first["host"]) {
      throw CommError("the shm backend needs all ranks on one host, but rank 0 is on '" +
                      first["host"].get<std::string>() + "' and rank " + std::to_string(r) + " on '" +
                      other["host"].get<std::string>() + "'");
    }
    if (other.value("arena", std::string()) != first.value("arena", std::string())) {
      throw CommError(names_.of(0) + " and " + names_.of(static_cast<int>(r)) +
                      " make a communicator with different arenas");
    }
  }
  if (rank_ == 0) {
    join(*listener, check);
    return;
  }
  sockets_[0] = UnixSocket::connect(first["socket"].get<std::string>(), std::chrono::seconds(10),
                                    [&] { check([this] { return name_and_state(0); }); });
  sockets_[0].send(std::to_string(rank_));
}

void DescriptorHub::join(UnixListener& listener, const WaitCheck& check) {
  const auto missing = [this] {
    std::string text;
    for (int r = 1; r < world_size_; ++r) {
      if (!sockets_[static_cast<std::size_t>(r)]) text += (text.empty() ? "" : ", ") + name_and_state(r);
    }
    return text;
  };
  std::vector<UnixSocket> strangers;  // connected, but have not sent their hello
  for (int joined = 1; joined < world_size_;) {
    check(missing);
    const auto tick = strangers.empty() ? kHubTick : std::chrono::milliseconds(1);
    if (auto peer = listener.accept(tick)) strangers.push_back(std::move(*peer));
    for (UnixSocket& stranger : strangers) {
      bool timed_out = false;
      const auto hello = stranger.receive(std::chrono::milliseconds(0), &timed_out);
      if (timed_out) continue;
      const int rank = hello ? parse_rank(hello->data, world_size_) : -1;
      if (rank >= 0 && !sockets_[static_cast<std::size_t>(rank)]) {
        sockets_[static_cast<std::size_t>(rank)] = std::move(stranger);
        ++joined;
      } else {
        stranger.close();  // not a rank of this communicator
      }
    }
    std::erase_if(strangers, [](const UnixSocket& stranger) { return !stranger; });
  }
}

std::string DescriptorHub::name_and_state(int rank) const {
  return names_.of(rank) + " (" + std::string(name_of(control_.peer_state(rank))) + ")";
}

UnixMessage DescriptorHub::receive_from(int rank, const char* expected, const WaitCheck& check) {
  UnixSocket& socket = sockets_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0];
  const auto missing = [&] {
    return rank_ == 0 ? name_and_state(rank) : name_and_state(0) + ", or a rank that it waits for";
  };
  for (;;) {
    bool timed_out = false;
    if (auto message = socket.receive(kHubTick, &timed_out)) {
      if (message->data == expected) return std::move(*message);
      throw CommError(names_.of(rank) + " sent '" + message->data.substr(0, 40) + "' where '" + expected +
                      "' is due while memory was exchanged");
    }
    check(missing);
    // The control plane is about to report the cause, which this socket does not know.
    if (!timed_out) throw CommError(names_.of(rank) + " closed its socket while memory was exchanged");
  }
}

void DescriptorHub::send_to(int rank, const char* text, std::span<const int> fds) {
  // The wait for a peer notices that it is gone, so send() need not report it.
  sockets_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0].send(text, fds);
}

UniqueFd DescriptorHub::spread(int fd, const WaitCheck& check) {
  if (rank_ != 0) {
    UnixMessage message = receive_from(0, kDescriptor, check);
    if (message.fds.size() != 1) throw CommError(names_.of(0) + " sent no descriptor of its memory");
    send_to(0, kReceived);
    return std::move(message.fds[0]);
  }
  for (int r = 1; r < world_size_ + kInFlight; ++r) {
    if (r < world_size_) send_to(r, kDescriptor, {&fd, 1});
    if (const int earlier = r - kInFlight; earlier >= 1) receive_from(earlier, kReceived, check);
  }
  return {};
}

void DescriptorHub::meet(const WaitCheck& check) {
  if (rank_ != 0) {
    send_to(0, kHere);
    receive_from(0, kAllHere, check);
    return;
  }
  for (int r = 1; r < world_size_; ++r) receive_from(r, kHere, check);
  for (int r = 1; r < world_size_; ++r) send_to(r, kAllHere);
}

// Returns the memory that rank 0 made, on every rank.
SharedMemory share_made(SharedMemory made, std::size_t bytes, DescriptorHub& hub, const RankNames& names,
                        const WaitCheck& check) {
  UniqueFd fd = hub.spread(made.fd(), check);
  if (fd) made = SharedMemory::map(std::move(fd));
  if (made.size() < bytes) {
    throw CommError(names.of(0) + " gave " + std::to_string(made.size()) + " bytes of memory where " +
                    std::to_string(bytes) + " are due");
  }
  return made;
}

}  // namespace dtrain::comm
