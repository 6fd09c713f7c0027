#include "store/server.h"

#include <algorithm>
#include <array>
#include <utility>

#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/write.hpp>

#include "control/socket.h"
#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"
#include "store/protocol.h"

namespace dtrain::comm::store {
namespace {

constexpr std::size_t kMostStrangers = 256;  // connections beyond those of the ranks
constexpr std::chrono::seconds kRequestTime{5};
constexpr std::chrono::milliseconds kSweep{500};
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

// One connection; the server's thread. Outstanding reads and writes keep it alive.
class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(StoreServer& server, asio::ip::tcp::socket socket) : server_(server), socket_(std::move(socket)) {
    asio::error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    address_ = socket_.remote_endpoint(ignored).address();
  }

  bool validated() const { return validated_; }
  bool closed() const { return !socket_.is_open(); }
  const asio::ip::address& address() const { return address_; }
  // True if the client has taken too long to say who it is, to complete a request, or to read an answer.
  bool overdue() const { return pending_since_ && std::chrono::steady_clock::now() - *pending_since_ > kRequestTime; }
  void close() {
    asio::error_code ignored;
    socket_.close(ignored);
  }

  // Answers the requests that have come, one after the other: the next one once the answer has been sent.
  void go_on() {
    try {
      while (!closed() && !sending_) {
        const auto request = take_request(received_);
        if (!request) break;
        send(answer(*request));
      }
    } catch (const DataError&) {
      return close();
    }
    if (closed()) return;
    if (validated_ && received_.empty() && !sending_) {
      pending_since_.reset();
    } else if (!pending_since_) {
      pending_since_ = std::chrono::steady_clock::now();
    }
    if (!sending_) read();
  }

  // Tells the client if all keys for which it waits are set.
  void look_again() {
    if (waits_for_.empty() || !all_set(waits_for_)) return;
    waits_for_.clear();
    send(std::string(1, kAllThere));
  }

 private:
  bool all_set(const std::vector<std::string>& keys) {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return server_.find(key).has_value(); });
  }

  std::string answer(const Request& request) {
    if (validated_ == (request.query == Query::kValidate)) throw DataError("a client begins by validating, once");
    switch (request.query) {
      case Query::kValidate:
        if (request.number != kMagic) throw DataError("another protocol");
        validated_ = true;
        return {};
      case Query::kPing:
        return integer_bytes(request.number, 4);
      case Query::kGet:
        if (const auto value = server_.find(request.keys[0])) return text_bytes(*value);
        throw DataError("a key that is not set");
      case Query::kCheck:
        return std::string(1, all_set(request.keys) ? kAllThere : kMissing);
      case Query::kWait:
        if (all_set(request.keys)) return std::string(1, kAllThere);
        waits_for_ = request.keys;
        return {};
      case Query::kCancelWait:
        waits_for_.clear();
        return std::string(1, kMissing);
      case Query::kSet:
      case Query::kDeleteKey:
        break;
    }
    throw DataError("the store is read only");
  }

  void read() {
    if (std::exchange(reading_, true)) return;
    socket_.async_read_some(asio::buffer(chunk_),
                            [self = shared_from_this()](asio::error_code error, std::size_t size) {
                              self->reading_ = false;
                              if (error) return self->close();
                              self->received_.append(self->chunk_.data(), size);
                              self->go_on();
                            });
  }

  void send(std::string_view bytes) {
    queued_ += bytes;
    if (queued_.empty() || sending_ || closed()) return;
    sending_ = true;
    sent_ = std::exchange(queued_, {});
    asio::async_write(socket_, asio::buffer(sent_), [self = shared_from_this()](asio::error_code error, std::size_t) {
      self->sending_ = false;
      if (error) return self->close();
      self->send({});
      self->go_on();
    });
  }

  StoreServer& server_;  // outlives its thread, and so this
  asio::ip::tcp::socket socket_;
  asio::ip::address address_;
  std::array<char, 4096> chunk_;
  std::string received_;
  std::string queued_;
  std::string sent_;
  std::vector<std::string> waits_for_;
  std::optional<std::chrono::steady_clock::time_point> pending_since_ = std::chrono::steady_clock::now();
  bool validated_ = false;
  bool reading_ = false;
  bool sending_ = false;
};

StoreServer::StoreServer(const Options& options)
    : most_(static_cast<std::size_t>(options.ranks) + kMostStrangers), acceptor_(io_), pause_(io_), sweep_(io_) {
  try {
    const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(options.address), options.port);
    open_acceptor(acceptor_, endpoint.protocol());
    acceptor_.set_option(asio::ip::tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
    port_ = acceptor_.local_endpoint().port();
  } catch (const std::system_error& error) {
    throw CommError(
        "cannot listen on " + options.address + ":" + std::to_string(options.port) + ": " + error.code().message(),
        error.code() == asio::error::address_in_use
            ? "another program uses the port: set MASTER_PORT to another one on all hosts"
            : "MASTER_ADDR must mean an address of this host, and MASTER_PORT a port that this user may use");
  }
  accept();
  sweep();
  const BlockedSignals for_its_thread;
  thread_ = start_thread("the store of rank 0", [this] { io_.run(); });
}

StoreServer::~StoreServer() {
  io_.stop();
  thread_.join();
}

void StoreServer::set(const std::string& key, const std::string& value) {
  check_value(value);
  const std::string wire = wire_key(key);
  {
    const std::lock_guard lock(mutex_);
    values_[wire] = value;
  }
  asio::post(io_, [this] {
    for (const auto& session : sessions_) session->look_again();
  });
}

bool StoreServer::has(const std::string& key) {
  return find(wire_key(key)).has_value();
}

std::string StoreServer::get(const std::string& key) {
  if (auto value = find(wire_key(key))) return *std::move(value);
  throw CommError("rank 0 has not set '" + key + "' in its store, and no other rank can");
}

void StoreServer::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  values_.erase(wire_key(key));
}

std::optional<std::string> StoreServer::find(const std::string& wire_key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(wire_key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void StoreServer::accept() {
  acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read, [this](asio::error_code error) {
    asio::ip::tcp::socket socket(io_);
    if (!error) socket = accept_waiting(acceptor_, io_, error);
    if (!error) {
      make_room();
      sessions_.push_back(std::make_shared<StoreSession>(*this, std::move(socket)));
      sessions_.back()->go_on();
    }
    if (!error || error == asio::error::would_block || error == asio::error::connection_aborted) return accept();
    // The process may be out of file descriptors, for example; trying again at once would occupy a core.
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](asio::error_code) { accept(); });
  });
}

// Closes a connection if there are as many as may be: of the address that has the most, the oldest one that has not
// said what it speaks, else the oldest one. Whoever fills the table loses its own.
void StoreServer::make_room() {
  sessions_.remove_if([](const auto& session) { return session->closed(); });
  if (sessions_.size() < most_) return;
  std::map<asio::ip::address, int> count;
  for (const auto& session : sessions_) ++count[session->address()];
  const auto most =
      std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto is_of_most = [&](const auto& session) { return session->address() == most->first; };
  auto victim = std::find_if(sessions_.begin(), sessions_.end(),
                             [&](const auto& session) { return !session->validated() && is_of_most(session); });
  if (victim == sessions_.end()) victim = std::find_if(sessions_.begin(), sessions_.end(), is_of_most);
  (*victim)->close();
  sessions_.erase(victim);
}

void StoreServer::sweep() {
  for (const auto& session : sessions_) {
    if (session->overdue()) session->close();
  }
  sessions_.remove_if([](const auto& session) { return session->closed(); });
  sweep_.expires_after(kSweep);
  sweep_.async_wait([this](asio::error_code) { sweep(); });
}

}  // namespace dtrain::comm::store
