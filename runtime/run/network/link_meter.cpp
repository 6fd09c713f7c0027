#include "network/link_meter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/statistics.h"
#include "network/link_stream.h"

namespace dtrain::run {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr auto kMeterPatience = 3s;   // for a whole connection except the sending itself
constexpr auto kStranger = 1s;        // until the client has proved that it knows the secret
constexpr auto kLongestSending = 5s;  // upper limit, whatever a client asks for
constexpr int kRoundTrips = 30;
constexpr std::size_t kPing = 8;
constexpr std::size_t kMeterChunk = 64 * 1024;
constexpr char kPings = 'p';
constexpr char kStream = 's';
constexpr std::size_t kDigits = 20;  // of a number in a message

std::string digits(std::int64_t number) {
  const std::string text = std::to_string(number);
  return std::string(kDigits - text.size(), '0') + text;
}

void answer_pings(LinkStream& stream) {
  for (int i = 0; i < kRoundTrips; ++i) stream.write(stream.read(kPing));
}

// Counts what arrives after the client's first part, until the client has sent everything.
void count_stream(LinkStream& stream) {
  const std::int64_t skipped = std::stoll(stream.read(kDigits));  // nanoseconds; stoll() throws if it is malformed
  const std::unique_ptr<char[]> buffer(new char[kMeterChunk]);
  const auto start = SteadyClock::now();
  std::int64_t bytes = 0;
  auto from = start;
  auto last = start;
  while (const std::size_t count = stream.read_some(buffer.get(), kMeterChunk)) {
    last = SteadyClock::now();
    if ((last - start).count() < skipped) {
      from = last;
    } else {
      bytes += static_cast<std::int64_t>(count);
    }
  }
  stream.write(digits(bytes) + digits(std::chrono::nanoseconds(last - from).count()));
}

void answer_meter(UniqueFd fd, const LinkKey& key) {
  LinkStream stream(std::move(fd), SteadyClock::now() + kStranger);
  stream.prove_as_server(key);
  stream.set_deadline(SteadyClock::now() + kMeterPatience + kLongestSending);
  switch (stream.read(1).front()) {
    case kPings:
      return answer_pings(stream);
    case kStream:
      return count_stream(stream);
    default:
      throw CommError("a measuring connection asks for something unknown");
  }
}

}  // namespace

LinkServer::LinkServer(const std::string& address, LinkKey key) : key_(std::move(key)) {
  const SocketAddress name = socket_address(address, 0);
  listener_.reset(::socket(name.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!listener_ || !stop_) throw SystemError("cannot make a socket", errno);
  if (::bind(listener_.get(), name.get(), name.size) != 0 || ::listen(listener_.get(), 8) != 0) {
    throw SystemError("cannot listen on " + address, errno);
  }
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  port_ = ntohs(bound.storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound.storage).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(bound.storage).sin_port);
  thread_ = std::thread([this, stop = stop_.get()] { serve(stop); });
}

LinkServer::~LinkServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void LinkServer::serve(int stop) const {
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{listener_.get(), POLLIN, 0}, pollfd{stop, POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) continue;
    try {
      answer_meter(std::move(fd), key_);
    } catch (const std::exception&) {  // a stranger, or a client that is gone: the client reports the error
    }
  }
}

Nanoseconds measure_round_trip(const LinkTarget& target, const LinkKey& key) {
  LinkStream stream = LinkStream::connect(target, SteadyClock::now() + kMeterPatience);
  stream.prove_as_client(key);
  stream.write(std::string(1, kPings));
  std::vector<Nanoseconds> trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = SteadyClock::now();
    stream.write(std::string(kPing, '.'));
    stream.read(kPing);
    trips.push_back(SteadyClock::now() - start);
  }
  return median_high(trips);
}

double measure_bandwidth(const LinkTarget& target, const LinkKey& key, Nanoseconds duration) {
  const Nanoseconds sending = std::min<Nanoseconds>(duration, kLongestSending);
  LinkStream stream = LinkStream::connect(target, SteadyClock::now() + sending + kMeterPatience);
  stream.prove_as_client(key);
  stream.write(std::string(1, kStream) + digits(sending.count() / 4));
  const std::unique_ptr<char[]> buffer(new char[kMeterChunk]());
  const auto end = SteadyClock::now() + sending;
  while (SteadyClock::now() < end) {
    if (stream.write_some(buffer.get(), kMeterChunk) == 0)
      throw CommError("a measuring connection accepts no more data");
  }
  stream.end_writing();
  const std::string counted = stream.read(2 * kDigits);
  const double bytes = std::stod(counted.substr(0, kDigits));
  const double nanoseconds = std::stod(counted.substr(kDigits));
  if (nanoseconds <= 0) throw CommError("nothing arrived in " + std::to_string(to_seconds(sending)) + " s");
  return bytes * 8 * 1e9 / nanoseconds;
}

}  // namespace dtrain::run
