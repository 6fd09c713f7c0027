#include "shm/descriptor_hub.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kTick{20};
constexpr std::size_t kFdsPerMessage = 60;  // the kernel takes 253, the socket 64

int parse_rank(const std::string& text, int world_size) {
  const int rank = text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos
                       ? -1
                       : std::stoi(text);
  return rank >= 1 && rank < world_size ? rank : -1;
}

}  // namespace

DescriptorHub::DescriptorHub(ControlPlane& control, const Check& check, RankNames names)
    : names_(std::move(names)),
      rank_(control.world().rank),
      world_size_(control.world().size),
      sockets_(rank_ == 0 ? static_cast<std::size_t>(world_size_) : 1) {
  std::optional<UnixListener> listener;
  if (rank_ == 0) listener = UnixListener::create("comm");
  const auto told = control.gather(
      "comm/shm", to_line({{"host", control.world().host}, {"socket", listener ? listener->name() : std::string()}}));
  const Json first = Json::parse(told[0]);
  for (std::size_t r = 1; r < told.size(); ++r) {
    const Json other = Json::parse(told[r]);
    if (other["host"] == first["host"]) continue;
    throw CommError("the shm backend needs all ranks on one host, but rank 0 is on '" +
                    first["host"].get<std::string>() + "' and rank " + std::to_string(r) + " on '" +
                    other["host"].get<std::string>() + "'");
  }
  if (rank_ != 0) {
    sockets_[0] = UnixSocket::connect(first["socket"].get<std::string>(), std::chrono::seconds(10), check);
    sockets_[0].send(std::to_string(rank_));
    return;
  }
  for (int joined = 1; joined < world_size_;) {
    check();
    auto peer = listener->accept(kTick);
    if (!peer) continue;
    const auto hello = peer->receive(std::chrono::seconds(1));
    const int rank = hello ? parse_rank(hello->data, world_size_) : -1;
    if (rank < 0 || sockets_[static_cast<std::size_t>(rank)]) continue;  // not one of ours
    sockets_[static_cast<std::size_t>(rank)] = std::move(*peer);
    ++joined;
  }
}

UnixMessage DescriptorHub::receive_from(int rank, const Check& check) {
  UnixSocket& socket = sockets_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0];
  for (;;) {
    bool timed_out = false;
    if (auto message = socket.receive(kTick, &timed_out)) return std::move(*message);
    check();
    // The control plane says why in a moment, better than this socket can.
    if (!timed_out) throw CommError(names_.of(rank) + " closed its socket while memory was exchanged");
  }
}

std::vector<UniqueFd> DescriptorHub::exchange(int fd, const Check& check) {
  std::vector<UniqueFd> all(static_cast<std::size_t>(world_size_));
  if (rank_ != 0) {
    sockets_[0].send("mine", {&fd, 1});
    for (std::size_t have = 0; have < all.size();) {
      UnixMessage message = receive_from(0, check);
      for (UniqueFd& received : message.fds) all.at(have++) = std::move(received);
    }
    return all;
  }
  all[0] = duplicate(fd);
  for (int r = 1; r < world_size_; ++r) {
    UnixMessage message = receive_from(r, check);
    if (message.fds.size() != 1) throw CommError(names_.of(r) + " sent no descriptor of its memory");
    all[static_cast<std::size_t>(r)] = std::move(message.fds[0]);
  }
  std::vector<int> numbers;
  for (const UniqueFd& one : all) numbers.push_back(one.get());
  for (int r = 1; r < world_size_; ++r) {
    for (std::size_t from = 0; from < numbers.size(); from += kFdsPerMessage) {
      const std::size_t count = std::min(kFdsPerMessage, numbers.size() - from);
      sockets_[static_cast<std::size_t>(r)].send("all", std::span(numbers).subspan(from, count));
    }
  }
  return all;
}

UniqueFd DescriptorHub::spread(int fd, const Check& check) {
  if (rank_ == 0) {
    for (int r = 1; r < world_size_; ++r) sockets_[static_cast<std::size_t>(r)].send("this", {&fd, 1});
    return duplicate(fd);
  }
  UnixMessage message = receive_from(0, check);
  if (message.fds.size() != 1) throw CommError(names_.of(0) + " sent no descriptor of its memory");
  return std::move(message.fds[0]);
}

}  // namespace dtrain::comm
