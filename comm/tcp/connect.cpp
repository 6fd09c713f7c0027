#include "tcp/connect.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "control/protocol.h"
#include "control/socket.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::comm {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostStrangers = 128;  // connections that have proved nothing yet
constexpr milliseconds kProofTakes{5'000};
constexpr milliseconds kProofMayTake{50};  // if there are too many: then the oldest is closed for a new one
constexpr int kAcceptedAtOnce = 16;
constexpr milliseconds kLook{100};
constexpr milliseconds kFirstRetry{5};
constexpr milliseconds kLongestRetry{200};
constexpr int kConnectionProtocol = 1;

// One rank's part of the meeting.
class Meeting {
 public:
  Meeting(const BackendParts& parts, int streams);
  std::vector<std::vector<DataSocket>> run();

 private:
  // A connection that was accepted.
  struct Stranger {
    std::shared_ptr<Connection> connection;
    std::string nonce;
    Clock::time_point since;
  };
  // A connection to a rank below.
  struct Call {
    int rank = 0;
    int stream = 0;
    tcp::endpoint to;
    Handshake handshake;
    std::shared_ptr<Connection> connection;
    std::unique_ptr<asio::steady_timer> again;
    milliseconds pause = kFirstRetry;
    std::string why = "no answer";
    bool done = false;
  };

  void listen(const std::string& address);
  void exchange_addresses(const std::string& address);
  void accept();
  void accept_later();
  bool drop_oldest();
  void close_oldest();
  void greet(tcp::socket socket);
  void answer(const std::list<Stranger>::iterator& stranger, const Json& hello);
  void look_after_all();
  void call(Call& to);
  void call_again(Call& to, const std::string& why);
  void answer(Call& to, const Json& message);
  Handshake handshake_of(int server, int client, int stream) const;
  void keep(int rank, int stream, int fd);
  bool is_complete() const;
  std::string describe_missing() const;
  std::string name_of(int rank) const {
    return "rank " + std::to_string(parts_.members[static_cast<std::size_t>(rank)]);
  }

  const BackendParts& parts_;
  const int streams_;
  const World& world_;
  const std::string key_;
  std::string id_;  // of this communicator
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer accepting_;
  asio::steady_timer looking_;
  std::vector<tcp::endpoint> endpoints_;  // by rank
  std::vector<std::vector<UniqueFd>> sockets_;
  std::list<Stranger> strangers_;  // the oldest first
  std::size_t refused_ = 0;
  std::list<Call> calls_;
  std::string failure_;
};

Meeting::Meeting(const BackendParts& parts, int streams)
    : parts_(parts),
      streams_(streams),
      world_(parts.control.world()),
      key_(parts.control.derive_key("data connections")),
      io_(1),
      acceptor_(io_),
      accepting_(io_),
      looking_(io_),
      sockets_(static_cast<std::size_t>(world_.size)) {
  for (auto& of_rank : sockets_) of_rank.resize(static_cast<std::size_t>(streams_));
  const std::string address = parts.address.empty() ? "127.0.0.1" : parts.address;
  listen(address);
  exchange_addresses(address);
}

void Meeting::listen(const std::string& address) {
  try {
    const tcp::endpoint endpoint(asio::ip::make_address(address), 0);
    open_acceptor(acceptor_, endpoint.protocol());
    acceptor_.bind(endpoint);
    acceptor_.listen();
  } catch (const std::system_error& error) {
    throw CommError(name_of(world_.rank) + " cannot listen on " + address + ": " + error.code().message(),
                    "DTRAIN_NETWORK_INTERFACE chooses the interface");
  }
}

void Meeting::exchange_addresses(const std::string& address) {
  const Json own = {{"id", random_hex(8)}, {"address", address}, {"port", acceptor_.local_endpoint().port()}};
  for (const std::string& text : parts_.control.gather("comm/tcp", to_line(own))) {
    const Json theirs = decode_payload(text);
    if (id_.empty()) id_ = text_member(theirs, "id");
    endpoints_.emplace_back(asio::ip::make_address(text_member(theirs, "address")),
                            static_cast<std::uint16_t>(integer_member(theirs, "port")));
  }
}

// A proof holds for one stream between two ranks of one communicator.
Handshake Meeting::handshake_of(int server, int client, int stream) const {
  return {
      to_line(Json::array({"data", id_, server, stream})), parts_.control.generation(), client, world_.size, {}, {}};
}

void Meeting::accept() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](asio::error_code error) {
    if (error) return;
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      if (strangers_.size() >= kMostStrangers && !drop_oldest()) return accept_later();
      tcp::socket socket = accept_waiting(acceptor_, io_, error);
      if (error == asio::error::would_block) break;
      if (error == asio::error::connection_aborted) continue;
      if (error) {  // the process may be out of file descriptors
        drop_oldest();
        return accept_later();
      }
      greet(std::move(socket));
    }
    accept();
  });
}

void Meeting::accept_later() {
  accepting_.expires_after(kProofMayTake);
  accepting_.async_wait([this](asio::error_code) { accept(); });
}

// False: it may still prove that it belongs to the run.
bool Meeting::drop_oldest() {
  if (strangers_.empty() || Clock::now() < strangers_.front().since + kProofMayTake) return false;
  close_oldest();
  return true;
}

void Meeting::close_oldest() {
  const auto connection = strangers_.front().connection;
  connection->close("it has not proved that it belongs to the run");
}

void Meeting::greet(tcp::socket socket) {
  const auto stranger = strangers_.insert(
      strangers_.end(), {std::make_shared<Connection>(std::move(socket), kProofTakes), random_hex(16), Clock::now()});
  stranger->connection->start([this, stranger](const Json& hello) { answer(stranger, hello); },
                              [this, stranger](const std::string&, bool) {
                                ++refused_;
                                strangers_.erase(stranger);
                              });
  stranger->connection->send(
      encode_frame({{"t", "challenge"}, {"protocol", kConnectionProtocol}, {"nonce", stranger->nonce}}));
}

void Meeting::answer(const std::list<Stranger>::iterator& stranger, const Json& hello) {
  const std::int64_t rank = integer_member(hello, "rank");
  const std::int64_t stream = integer_member(hello, "stream");
  if (rank <= world_.rank || rank >= world_.size || stream < 0 || stream >= streams_) throw DataError("no such rank");
  Handshake handshake = handshake_of(world_.rank, static_cast<int>(rank), static_cast<int>(stream));
  handshake.server_nonce = stranger->nonce;
  handshake.client_nonce = text_member(hello, "nonce");
  if (!equal_secrets(text_member(hello, "proof"), client_proof(key_, handshake))) throw DataError("wrong proof");
  const std::string welcome = encode_frame({{"t", "welcome"}, {"proof", server_proof(key_, handshake)}});
  UniqueFd fd(stranger->connection->release());
  strangers_.erase(stranger);
  // It is the first that is sent since the challenge, so there is room for it.
  if (::send(fd.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(welcome.size())) return;
  keep(static_cast<int>(rank), static_cast<int>(stream), fd.release());
}

// A rank whose connection was lost before its welcome comes again: then the new one counts.
void Meeting::keep(int rank, int stream, int fd) {
  sockets_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(stream)].reset(fd);
}

void Meeting::call(Call& to) {
  std::shared_ptr<tcp::socket> socket;
  try {
    socket = std::make_shared<tcp::socket>(make_tcp_socket(io_, to.to.protocol()));
  } catch (const std::system_error& error) {  // out of file descriptors, for example
    return call_again(to, error.code().message());
  }
  socket->async_connect(to.to, [this, &to, socket](asio::error_code error) {
    if (error) return call_again(to, error.message());
    to.handshake = handshake_of(to.rank, world_.rank, to.stream);
    to.connection = std::make_shared<Connection>(std::move(*socket), kProofTakes);
    to.connection->start(
        [this, &to](const Json& message) { answer(to, message); },
        [this, &to](const std::string& reason, bool) { call_again(to, "it ended the connection (" + reason + ")"); });
  });
}

// A listener that has many strangers may have taken this rank for one of them.
void Meeting::call_again(Call& to, const std::string& why) {
  if (to.done) return;
  to.why = why;
  to.again->expires_after(to.pause);
  to.pause = std::min(kLongestRetry, to.pause * 2);
  to.again->async_wait([this, &to](asio::error_code cancelled) {
    if (!cancelled) call(to);
  });
}

void Meeting::answer(Call& to, const Json& message) {
  Handshake& handshake = to.handshake;
  if (handshake.client_nonce.empty()) {
    if (integer_member(message, "protocol") != kConnectionProtocol) throw DataError("it speaks another protocol");
    handshake.server_nonce = text_member(message, "nonce");
    handshake.client_nonce = random_hex(16);
    to.connection->send(encode_frame({{"t", "hello"},
                                      {"rank", world_.rank},
                                      {"stream", to.stream},
                                      {"nonce", handshake.client_nonce},
                                      {"proof", client_proof(key_, handshake)}}));
    return;
  }
  if (!equal_secrets(text_member(message, "proof"), server_proof(key_, handshake))) {
    throw DataError("it does not know this run's secret");
  }
  to.done = true;
  keep(to.rank, to.stream, to.connection->release());
}

// Repeats, until the meeting is over.
void Meeting::look_after_all() {
  const auto time = Clock::now();
  while (!strangers_.empty() && strangers_.front().since + kProofTakes < time) close_oldest();
  if (const auto failure = parts_.control.failure()) failure_ = failure_text(*failure);
  looking_.expires_after(kLook);
  looking_.async_wait([this](asio::error_code) { look_after_all(); });
}

bool Meeting::is_complete() const {
  for (int r = 0; r < world_.size; ++r) {
    const auto& of_rank = sockets_[static_cast<std::size_t>(r)];
    if (r != world_.rank && !std::all_of(of_rank.begin(), of_rank.end(), [](const UniqueFd& fd) { return bool(fd); })) {
      return false;
    }
  }
  return true;
}

std::string Meeting::describe_missing() const {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : "; ") + one; };
  for (const Call& call : calls_) {
    const auto& to = call.to;
    if (!call.done && call.stream == 0) {
      add(name_of(call.rank) + " cannot be reached at " + to.address().to_string() + ":" + std::to_string(to.port()) +
          ": " + call.why);
    }
  }
  for (int r = world_.rank + 1; r < world_.size; ++r) {
    if (!sockets_[static_cast<std::size_t>(r)][0]) add(name_of(r) + " has not connected");
  }
  return text;
}

std::vector<std::vector<DataSocket>> Meeting::run() {
  for (int r = 0; r < world_.rank; ++r) {
    for (int s = 0; s < streams_; ++s) {
      Call& to = calls_.emplace_back();
      to.rank = r;
      to.stream = s;
      to.to = endpoints_[static_cast<std::size_t>(r)];
      to.again = std::make_unique<asio::steady_timer>(io_);
      call(to);
    }
  }
  accept();
  look_after_all();
  const auto deadline = Clock::now() + parts_.options.timeout;
  while (!is_complete()) {
    io_.run_one_until(deadline);
    if (!failure_.empty()) throw CommError(failure_);
    if (Clock::now() > deadline) {
      throw CommError(name_of(world_.rank) + " is not connected to all ranks after " +
                          format_duration(parts_.options.timeout) + ": " + describe_missing(),
                      "every host must accept TCP connections of the others on all ports; DTRAIN_NETWORK_INTERFACE "
                      "chooses the interface");
    }
  }
  refused_ += strangers_.size();
  if (refused_ > 0 && parts_.options.log) {
    parts_.options.log->warn("{}: refused {} connections that did not prove that they belong to the run",
                             name_of(world_.rank), refused_);
  }
  std::vector<std::vector<DataSocket>> result(sockets_.size());
  for (std::size_t r = 0; r < sockets_.size(); ++r) {
    for (UniqueFd& fd : sockets_[r]) {
      if (fd) result[r].emplace_back(std::move(fd));
    }
  }
  return result;
}

}  // namespace

std::vector<std::vector<DataSocket>> connect_ranks(const BackendParts& parts, int streams) {
  return Meeting(parts, streams).run();
}

}  // namespace dtrain::comm
