#include "network/link_meter.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/numeric.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {

namespace {

// Sends small messages at once and queues little, because the measurement waits until the queue is sent.
void set_up(int fd) {
  const int on = 1;
  const int unsent_bytes = 256 * 1024;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// CommError: `address` is no IP address.
SocketAddress socket_address(const std::string& address, int port) {
  const auto ip = host::network_of(address);
  if (!ip) throw CommError("'" + address + "' is no IP address");
  SocketAddress result;
  if (ip->v6) {
    auto& name = reinterpret_cast<sockaddr_in6&>(result.storage);
    name.sin6_family = AF_INET6;
    name.sin6_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&name.sin6_addr, ip->bytes.data(), 16);
    result.size = sizeof name;
  } else {
    auto& name = reinterpret_cast<sockaddr_in&>(result.storage);
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&name.sin_addr, ip->bytes.data(), 4);
    result.size = sizeof name;
  }
  return result;
}

}  // namespace

LinkStream::LinkStream(UniqueFd fd, Time deadline) : fd_(std::move(fd)), deadline_(deadline) {
  set_up(fd_.get());
}

LinkStream LinkStream::connect(const LinkTarget& target, Time deadline) {
  const SocketAddress from = socket_address(target.from, 0);
  const SocketAddress to = socket_address(target.address, target.port);
  UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw SystemError("cannot make a socket", errno);
  if (::bind(fd.get(), from.get(), from.size) != 0) {
    throw SystemError("cannot use the address " + target.from, errno);
  }
  const std::string what = "no connection from " + target.from + " to " + target.address;
  int code = ::connect(fd.get(), to.get(), to.size) == 0 ? 0 : errno;
  LinkStream stream(std::move(fd), deadline);
  if (code == EINPROGRESS) {
    if (!stream.wait(POLLOUT)) throw CommError(what + ": no answer in time", "is there a firewall between them?");
    socklen_t size = sizeof code;
    ::getsockopt(stream.fd_.get(), SOL_SOCKET, SO_ERROR, &code, &size);
  }
  if (code != 0) throw CommError(what + ": " + std::strerror(code));
  return stream;
}

bool LinkStream::wait(short events) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{fd_.get(), events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for a connection", errno);
  }
}

std::size_t LinkStream::read_some(char* buffer, std::size_t size) {
  while (wait(POLLIN)) {
    const ssize_t count = ::recv(fd_.get(), buffer, size, MSG_DONTWAIT);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EAGAIN && errno != EINTR) return 0;
  }
  return 0;
}

std::size_t LinkStream::write_some(const char* buffer, std::size_t size) {
  while (wait(POLLOUT)) {
    const ssize_t count = ::send(fd_.get(), buffer, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EAGAIN && errno != EINTR) return 0;
  }
  return 0;
}

std::string LinkStream::read(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t count = read_some(text.data() + done, bytes - done);
    if (count == 0) throw CommError("a measuring connection has ended early, or gave no answer in time");
    done += count;
  }
  return text;
}

void LinkStream::write(const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const std::size_t count = write_some(text.data() + done, text.size() - done);
    if (count == 0) throw CommError("a measuring connection accepts no more data");
    done += count;
  }
}

void LinkStream::end_writing() {
  ::shutdown(fd_.get(), SHUT_WR);
}

void LinkStream::prove(comm::Handshake handshake) {
  using State = comm::Handshake::State;
  write(handshake.begin());
  while (handshake.state() == State::kRunning) {
    const std::string header = read(comm::kHandshakeHeaderBytes);
    const std::size_t size = handshake.length_of(reinterpret_cast<const unsigned char*>(header.data()));
    if (size > 0) write(handshake.receive(read(size)));
  }
  if (handshake.state() == State::kRefused) {
    throw CommError("a measuring connection is not the one intended: " + handshake.error());
  }
}

namespace {

comm::Introduction introduction(const LinkKey& key) {
  return {.purpose = "link", .session = "launch", .server = key.server, .host = {}};
}

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

// Counts the bytes that arrive after the client's first part, until the client has sent everything.
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
  stream.prove(comm::Handshake::listening(key.secret, introduction(key), {}));
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

constexpr std::size_t kLongestErrors = 16 * 1024;
constexpr int kMostNoise = 200;  // lines that a login may print before the greeting

// Makes a socket for standard input: unlike with a pipe, a write does not kill this process when the reader is gone.
Pipe make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError("cannot make a socket", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
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
  thread_ = start_thread("the link meter", [this, stop = stop_.get()] { serve(stop); });
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
  stream.prove(comm::Handshake::connecting(key.secret, introduction(key)));
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
  stream.prove(comm::Handshake::connecting(key.secret, introduction(key)));
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

ProbeSession::ProbeSession(std::string host, const std::vector<std::string>& command)
    : host_(std::move(host)), program_(command.front()), process_([&] {
        Pipe in = make_socket_pair();
        Pipe out = make_pipe();
        Pipe err = make_pipe();
        Process process = Process::start(
            {.command = command, .fds = {{0, in.reader.get()}, {1, out.writer.get()}, {2, err.writer.get()}}});
        input_ = std::move(in.writer);
        output_ = std::move(out.reader);
        errors_ = std::move(err.reader);
        return process;
      }()) {}

bool ProbeSession::read_more(Time deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    std::array<pollfd, 2> entries{pollfd{output_.get(), POLLIN, 0}, pollfd{errors_.get(), POLLIN, 0}};
    const int count = ::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for host " + host_, errno);
    if (count <= 0) continue;
    std::array<char, 4096> buffer{};
    if (entries[1].revents != 0) {
      const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
      if (size <= 0) {
        errors_.reset();
      } else if (error_text_.size() < kLongestErrors) {
        error_text_.append(buffer.data(), static_cast<std::size_t>(size));
      }
    }
    if (entries[0].revents == 0) continue;
    const ssize_t size = ::read(output_.get(), buffer.data(), buffer.size());
    if (size <= 0) return false;
    buffered_.append(buffer.data(), static_cast<std::size_t>(size));
    return true;
  }
}

bool ProbeSession::next_line(std::string& line, Time deadline) {
  for (;;) {
    if (const auto end = buffered_.find('\n'); end != std::string::npos) {
      line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return true;
    }
    if (buffered_.size() > probe::kLongestLine || !read_more(deadline)) return false;
  }
}

// The last line of the remote shell's standard error.
std::string ProbeSession::last_words() {
  while (errors_ && error_text_.size() < kLongestErrors) {
    pollfd entry{errors_.get(), POLLIN, 0};
    std::array<char, 4096> buffer{};
    if (::poll(&entry, 1, 100) <= 0) break;
    const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    error_text_.append(buffer.data(), static_cast<std::size_t>(size));
  }
  std::vector<std::string> lines = split(error_text_, '\n');
  std::string last;
  for (std::string& line : lines) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) last = line;
  }
  return last;
}

void ProbeSession::greet(Time deadline) {
  std::string line;
  for (int noise = 0; noise < kMostNoise; ++noise) {
    if (!next_line(line, deadline)) break;
    if (!line.starts_with(probe::kGreeting)) continue;
    const Json greeting = Json::parse(line, nullptr, false);
    const std::string theirs = greeting.is_object() ? greeting.value("dtrain", "") : "";
    if (theirs != rank::version() || greeting.value("protocol", 0) != probe::kProtocol) {
      throw ConfigError("host " + host_ + " has dtrain " + theirs + ", and this host " + rank::version(),
                        "install the same version on all hosts, under the same path");
    }
    name_ = greeting.value("host", "");
    key_ = greeting.value("key", "");
    return;
  }
  const auto status = process_.wait(std::chrono::milliseconds(200));
  const std::string words = last_words();
  const std::string said = words.empty() ? "" : ": " + words;
  const std::string dtrain = executable_path().string();
  if (!status) {
    throw ConfigError(
        "host " + host_ + " did not answer in time" + said,
        "does `" + program_ + " " + host_ + " " + dtrain + " version` answer at once, without a question?");
  }
  if (status->code == 127 || status->code == 126) {
    throw ConfigError("host " + host_ + " has no program " + dtrain + said,
                      "install the same dtrain on all hosts, under the same path");
  }
  if (status->code == 255 || status->signal != 0) {
    throw ConfigError("host " + host_ + " cannot be reached by " + program_ + said,
                      "`" + program_ + " " + host_ + " true` must work without a password or a question");
  }
  throw ConfigError("dtrain on host " + host_ + " ended with " + status->describe() + said,
                    "is it another version? `" + dtrain + " version` there; here it is " + rank::version());
}

void ProbeSession::send(const Json& request) {
  const std::string line = to_line(request) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::send(input_.get(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw CommError("host " + host_ + " has ended its connection");
    done += static_cast<std::size_t>(count);
  }
}

Json ProbeSession::receive(Time deadline) {
  std::string line;
  if (!next_line(line, deadline)) {
    const auto status = process_.wait(std::chrono::milliseconds(0));
    const std::string words = last_words();
    throw CommError("host " + host_ + (status ? " has ended its connection" : " did not answer in time") +
                    (words.empty() ? "" : ": " + words));
  }
  Json answer = Json::parse(line, nullptr, false);
  if (!answer.is_object()) throw CommError("host " + host_ + " sent an answer that cannot be read");
  return answer;
}

std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline) {
  for (std::size_t i = 0; i < sessions.size(); ++i) sessions[i].send(requests[i]);
  std::vector<Json> answers;
  answers.reserve(sessions.size());
  for (ProbeSession& session : sessions) answers.push_back(session.receive(deadline));
  return answers;
}

std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline) {
  return ask_each(sessions, std::vector<Json>(sessions.size(), request), deadline);
}

}  // namespace dtrain::launcher
