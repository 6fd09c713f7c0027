#include "tcp/meeting.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "control/handshake.h"
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

constexpr const char* kDataPurpose = "data";
constexpr milliseconds kProofTakes{5'000};
constexpr milliseconds kLookPeriod{100};
constexpr milliseconds kFirstRetry{5};
constexpr milliseconds kLongestConnectPause{200};

// One rank's part of a meeting: it listens, and connects to the ranks below it. Strangers that connect are closed after
// a few seconds, or sooner if there are many; a warning then says how many.
class Meeting {
 public:
  Meeting(const BackendParts& parts, std::vector<bool> wanted);
  ~Meeting();
  std::vector<std::optional<DataSocket>> run();

 private:
  // A connection to a rank below.
  struct Call {
    int rank = 0;
    tcp::endpoint to;
    std::shared_ptr<PendingHandshake> handshake;
    std::unique_ptr<asio::steady_timer> again;
    milliseconds pause = kFirstRetry;
    std::string why = "no answer";
    bool done = false;
  };

  void listen(const std::string& address);
  void exchange_addresses(const std::string& address);
  void call(Call& to);
  void call_again(Call& to, const std::string& why);
  void answered(Call& to, Proven proven);
  Introduction introduction(int server, int client) const;
  void keep(int rank, Wire wire);
  void look_after_failures();
  bool is_wanted(int rank) const { return wanted_[static_cast<std::size_t>(rank)]; }
  bool lacks(int rank) const { return is_wanted(rank) && !wires_[static_cast<std::size_t>(rank)]; }
  bool is_complete() const;
  std::string describe_missing() const;
  std::string name_of(int rank) const {
    return "rank " + std::to_string(parts_.members[static_cast<std::size_t>(rank)]);
  }

  const BackendParts& parts_;
  const World& world_;
  const std::vector<bool> wanted_;  // by rank
  const std::string key_;
  std::string id_;  // of this communicator
  asio::io_context io_;
  ProvingListener listener_;
  tcp::endpoint own_;
  asio::steady_timer looking_;
  std::vector<tcp::endpoint> endpoints_;    // by rank
  std::vector<std::optional<Wire>> wires_;  // by rank
  std::list<Call> calls_;
  std::string failure_;
};

Meeting::Meeting(const BackendParts& parts, std::vector<bool> wanted)
    : parts_(parts),
      world_(parts.control.world()),
      wanted_(std::move(wanted)),
      key_(parts.control.derive_key("data connections")),
      io_(1),
      listener_(io_, "data connections of " + name_of(world_.rank),
                parts.options.log ? parts.options.log : make_null_logger(), parts.options.security, kProofTakes),
      looking_(io_),
      wires_(static_cast<std::size_t>(world_.size)) {
  const std::string address = parts.address.empty() ? "127.0.0.1" : parts.address;
  listen(address);
  exchange_addresses(address);
}

// What is outstanding refers to this object: it ends without being called.
Meeting::~Meeting() {
  for (const Call& call : calls_) {
    if (call.handshake && !call.done) call.handshake->end("this rank has given up");
  }
  listener_.close();
}

void Meeting::listen(const std::string& address) {
  try {
    own_ = listener_.open({asio::ip::make_address(address), 0});
  } catch (const std::system_error& error) {
    throw CommError(name_of(world_.rank) + " cannot listen on " + address + ": " + error.code().message(),
                    "DTRAIN_NETWORK_INTERFACE chooses the interface");
  }
}

void Meeting::exchange_addresses(const std::string& address) {
  const Json own = {{"id", random_hex(8)}, {"address", address}, {"port", own_.port()}};
  for (const std::string& text : parts_.control.gather("comm/tcp", to_line(own))) {
    const Json theirs = decode_payload(text);
    if (id_.empty()) id_ = text_member(theirs, "id");
    endpoints_.emplace_back(asio::ip::make_address(text_member(theirs, "address")),
                            static_cast<std::uint16_t>(integer_member(theirs, "port")));
  }
}

// A proof holds for the connection between two ranks of one communicator.
Introduction Meeting::introduction(int server, int client) const {
  return {.purpose = kDataPurpose,
          .session = id_,
          .generation = parts_.control.generation(),
          .size = world_.size,
          .rank = client,
          .server = server};
}

// A rank whose connection was lost before its welcome comes again: then the new one counts.
void Meeting::keep(int rank, Wire wire) {
  wires_[static_cast<std::size_t>(rank)].emplace(std::move(wire));
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
    to.handshake = start_handshake(std::move(*socket), Handshake::connecting(key_, introduction(to.rank, world_.rank)),
                                   parts_.options.security, kProofTakes,
                                   [this, &to](Proven proven) { answered(to, std::move(proven)); });
  });
}

// A listener that has many strangers may have taken this rank for one of them.
void Meeting::call_again(Call& to, const std::string& why) {
  to.why = why;
  to.again->expires_after(to.pause);
  to.pause = std::min(kLongestConnectPause, to.pause * 2);
  to.again->async_wait([this, &to](asio::error_code cancelled) {
    if (!cancelled) call(to);
  });
}

void Meeting::answered(Call& to, Proven proven) {
  to.handshake.reset();
  if (proven.end != Proven::End::kProven) return call_again(to, proven.error);
  to.done = true;
  keep(to.rank, std::move(proven.wire));
}

// Repeats, until the meeting is over.
void Meeting::look_after_failures() {
  if (const auto failure = parts_.control.failure()) failure_ = failure_text(*failure);
  looking_.expires_after(kLookPeriod);
  looking_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) look_after_failures();
  });
}

bool Meeting::is_complete() const {
  for (int r = 0; r < world_.size; ++r) {
    if (lacks(r)) return false;
  }
  return true;
}

std::string Meeting::describe_missing() const {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  for (const Call& call : calls_) {
    const auto& to = call.to;
    if (!call.done) {
      add(name_of(call.rank) + " cannot be reached at " + to.address().to_string() + ":" + std::to_string(to.port()) +
          ": " + call.why);
    }
  }
  for (int r = world_.rank + 1; r < world_.size; ++r) {
    if (lacks(r)) add(name_of(r) + " has not connected");
  }
  return text;
}

std::vector<std::optional<DataSocket>> Meeting::run() {
  for (int r = 0; r < world_.rank; ++r) {
    if (!is_wanted(r)) continue;
    Call& to = calls_.emplace_back();
    to.rank = r;
    to.to = endpoints_[static_cast<std::size_t>(r)];
    to.again = std::make_unique<asio::steady_timer>(io_);
    call(to);
  }
  const auto admit = [this](const Introduction& other) {
    const bool connects =
        other.rank > world_.rank && other.rank < world_.size && is_wanted(static_cast<int>(other.rank));
    return connects ? std::string() : "rank " + std::to_string(other.rank) + " does not connect to this one";
  };
  listener_.start([this, admit] { return Handshake::listening(key_, introduction(world_.rank, 0), admit); },
                  [this](Proven proven) { keep(static_cast<int>(proven.other.rank), std::move(proven.wire)); });
  look_after_failures();
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
  std::vector<std::optional<DataSocket>> result(wires_.size());
  for (std::size_t r = 0; r < wires_.size(); ++r) {
    if (auto& wire = wires_[r]) result[r].emplace(UniqueFd(wire->socket.release()), std::move(wire->tls));
  }
  return result;
}

}  // namespace

std::vector<std::optional<DataSocket>> connect_to_ranks(const BackendParts& parts, const std::vector<bool>& wanted) {
  return Meeting(parts, wanted).run();
}

std::vector<std::optional<DataSocket>> connect_to_all_ranks(const BackendParts& parts) {
  std::vector<bool> wanted(static_cast<std::size_t>(parts.control.world().size), true);
  wanted[static_cast<std::size_t>(parts.control.world().rank)] = false;
  return connect_to_ranks(parts, wanted);
}

}  // namespace dtrain::comm
