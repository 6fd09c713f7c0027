// The side of the control plane of every rank but 0: one connection to rank 0.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include "control/handshake.h"
#include "control/plane_base.h"
#include "control/protocol.h"
#include "control/socket.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kLongestRetry{50};
constexpr std::chrono::milliseconds kClientFailureHandover{1'000};
constexpr std::chrono::milliseconds kClientClosing{500};
constexpr std::chrono::milliseconds kWelcomeDeadline{10'000};  // then it connects again

asio::ip::tcp::endpoint resolve(asio::io_context& io, const ControlEndpoint& server) {
  asio::error_code not_numeric;
  const auto address = asio::ip::make_address(server.address, not_numeric);
  if (!not_numeric) return {address, server.port};
  asio::ip::tcp::resolver resolver(io);
  asio::error_code error;
  const auto found = resolver.resolve(server.address, std::to_string(server.port), error);
  if (error || found.empty()) {
    throw CommError("the address of rank 0, '" + server.address + "', cannot be resolved: " + error.message());
  }
  return found.begin()->endpoint();
}

class ControlClient final : public PlaneBase {
 public:
  ControlClient(const ControlOptions& options, const ControlEndpoint& server);
  ~ControlClient() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds deadline) override;
  std::vector<std::string> gather(const std::string& name, const std::string& value) override;
  void fail(const RankFailure& failure) override;
  std::optional<ClockOffset> measure_clock(std::chrono::milliseconds deadline) override;
  PeerState peer_state(int rank) const override;
  void finish() override;
  void leave() override;

 private:
  enum class Stage { kConnecting, kReady, kRefused, kClosed };
  struct Gather {
    std::vector<std::string> values;
    std::size_t received = 0;
  };

  // Called on the control thread.
  void try_connect();
  void retry(const std::string& why);
  void refuse(const std::string& why);
  void handle(const Json& message);
  void connected(Proven proven);
  void closed(const std::string& reason, bool malformed);
  void beat();
  void compare_clocks();
  void clock_answered(const Json& message, SteadyClock::time_point now);

  void send(std::string message);  // any thread
  // Returns rank 0's answer to a question of this type about a gather or a key.
  std::string ask_missing(Lock& lock, const char* question, const std::string& name);
  std::string not_waiting_for(const std::string& key) override;

  const std::string server_name_;  // "127.0.0.1:4711"
  asio::ip::tcp::endpoint server_;
  asio::steady_timer heartbeat_;
  asio::steady_timer retry_timer_;
  asio::steady_timer clock_timer_;
  std::chrono::milliseconds retry_after_{5};
  std::shared_ptr<Connection> connection_;  // control thread only
  ClockProbe clock_probe_;                  // control thread only

  // Guarded by mutex_.
  Stage stage_ = Stage::kConnecting;
  std::string last_error_;
  std::int64_t server_pid_ = 0;
  std::string server_host_;
  SteadyClock::time_point last_beat_;
  std::vector<PeerState> states_;
  std::uint64_t clocks_compared_ = 0;
  std::int64_t next_get_ = 0;
  std::map<std::int64_t, std::optional<std::string>> gets_;
  std::map<std::string, Gather> gathers_;
  std::map<std::string, std::string> missing_;
};

ControlClient::ControlClient(const ControlOptions& options, const ControlEndpoint& server)
    : PlaneBase(options),
      server_name_(server.address + ":" + std::to_string(server.port)),
      server_(resolve(io_, server)),
      heartbeat_(io_),
      retry_timer_(io_),
      clock_timer_(io_),
      states_(static_cast<std::size_t>(options.world.size), PeerState::kConnecting) {
  asio::post(io_, [this] { try_connect(); });
  start_thread();
  Lock lock(mutex_);
  const auto deadline = SteadyClock::now() + options_.timeout;
  changed_.wait_until(lock, deadline, [this] { return stage_ != Stage::kConnecting; });
  if (stage_ == Stage::kReady) return;
  const std::string why = last_error_.empty() ? "no answer" : last_error_;
  const bool refused = stage_ == Stage::kRefused;
  lock.unlock();
  stop_thread();
  const std::string who = "rank " + std::to_string(options_.world.rank) + " cannot join rank 0 at " + server_name_;
  if (refused) throw CommError(who + ": " + why);
  throw CommError(who + " within " + seconds_of_timeout() + ": " + why,
                  "check that rank 0 runs, and that this address and port can be reached from here");
}

ControlClient::~ControlClient() {
  if (!has_thread()) return;
  asio::post(io_, [this] {
    heartbeat_.cancel();
    clock_timer_.cancel();
    if (connection_) connection_->close_when_sent("this rank ends");
  });
  Lock lock(mutex_);
  changed_.wait_for(lock, kClientClosing, [this] { return stage_ == Stage::kClosed; });
  lock.unlock();
  stop_thread();
}

void ControlClient::try_connect() {
  std::shared_ptr<asio::ip::tcp::socket> socket;
  try {
    socket = std::make_shared<asio::ip::tcp::socket>(make_tcp_socket(io_, server_.protocol()));
  } catch (const std::system_error& error) {  // out of file descriptors, for example
    return retry(error.what());
  }
  socket->async_connect(server_, [this, socket](asio::error_code error) {
    if (error) return retry(error.message());
    const World& world = options_.world;
    auto handshake = Handshake::connecting(options_.secret, {.purpose = kControlPurpose,
                                                             .session = options_.session,
                                                             .generation = options_.generation,
                                                             .size = world.size,
                                                             .rank = world.rank,
                                                             .pid = getpid(),
                                                             .host = options_.host_name});
    try {
      start_handshake(std::move(*socket), std::move(handshake), options_.security,
                      std::min(kWelcomeDeadline, options_.timeout),
                      [this](Proven proven) { connected(std::move(proven)); });
    } catch (const CommError& error) {  // libssl without TLS 1.3, for example
      refuse(error.what());
    }
  });
}

void ControlClient::retry(const std::string& why) {
  {
    const Lock lock(mutex_);
    last_error_ = why;
  }
  retry_timer_.expires_after(retry_after_);
  retry_after_ = std::min(kLongestRetry, retry_after_ * 3 / 2);
  retry_timer_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) try_connect();
  });
}

void ControlClient::refuse(const std::string& why) {
  {
    const Lock lock(mutex_);
    last_error_ = why;
    stage_ = Stage::kRefused;
  }
  changed_.notify_all();
}

void ControlClient::connected(Proven proven) {
  switch (proven.end) {
    case Proven::End::kLost:
      return retry(proven.error);
    case Proven::End::kRefused:
      return refuse(proven.error);
    case Proven::End::kProven:
      break;
  }
  {
    const Lock lock(mutex_);
    server_pid_ = proven.other.pid;
    server_host_ = proven.other.host;
    last_beat_ = SteadyClock::now();
    stage_ = Stage::kReady;
  }
  connection_ = std::make_shared<Connection>(std::move(proven), options_.host_silence);
  connection_->start([this](const Json& message) { handle(message); },
                     [this](const std::string& reason, bool malformed) { closed(reason, malformed); });
  changed_.notify_all();
  beat();
}

void ControlClient::handle(const Json& message) {
  const auto now = SteadyClock::now();
  const std::string type = text_member(message, "t");
  Lock lock(mutex_);
  last_beat_ = now;
  if (type == "beat") {
    const Json& states = member(message, "states");
    if (!states.is_array() || states.size() != states_.size()) throw DataError("states of another world");
    const auto known = [](const Json& state) {
      return state.is_number_integer() && state >= 0 && state <= static_cast<int>(PeerState::kFinished);
    };
    if (!std::all_of(states.begin(), states.end(), known)) throw DataError("a state that does not exist");
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = static_cast<PeerState>(states[i].get<int>());
  } else if (type == "value") {
    const auto asked = gets_.find(integer_member(message, "id"));
    if (asked != gets_.end()) asked->second = decode_value(member(message, "v"));
  } else if (type == "gathered") {
    const auto found = gathers_.find(text_member(message, "n"));
    if (found == gathers_.end()) return;  // given up at its deadline
    auto from = static_cast<std::size_t>(integer_member(message, "from"));
    for (const Json& value : member(message, "v")) {
      if (from >= found->second.values.size()) throw DataError("values of more ranks than there are");
      found->second.values[from++] = decode_value(value);
      ++found->second.received;
    }
  } else if (type == "pong") {
    lock.unlock();
    return clock_answered(message, now);
  } else if (type == "missing") {
    missing_[text_member(message, "n")] = text_member(message, "text");
  } else if (type == "finished") {
    all_finished_ = true;
  } else if (type == "failed") {
    lock.unlock();
    connection_->send(encode_message({{"t", "noted"}}));
    publish({static_cast<int>(integer_member(message, "rank")), integer_member(message, "step"),
             text_member(message, "cause"), departure_member(message)});
    return;
  } else {
    throw DataError("unknown message '" + type + "'");
  }
  lock.unlock();
  changed_.notify_all();
}

void ControlClient::closed(const std::string& reason, bool malformed) {
  const Departure departure = connection_ && connection_->silent() ? Departure::kSilent : Departure::kGone;
  connection_.reset();
  if (malformed) options_.log->warn("control: ended the connection to rank 0 at {}: {}", server_name_, reason);
  Lock lock(mutex_);
  stage_ = Stage::kClosed;
  states_[0] = PeerState::kGone;
  const std::string server = process_text(0, server_pid_, server_host_);
  lock.unlock();
  changed_.notify_all();
  heartbeat_.cancel();
  clock_timer_.cancel();
  publish({0, -1, server + " is gone: " + reason, departure});
  lock.lock();
  closed_ = true;
  lock.unlock();
  changed_.notify_all();
}

void ControlClient::beat() {
  if (!connection_) return;
  if (connection_->idle()) connection_->send(encode_message({{"t", "beat"}, {"step", step_.load()}}));
  heartbeat_.expires_after(options_.heartbeat);
  heartbeat_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) beat();
  });
}

void ControlClient::compare_clocks() {
  if (!connection_ || clock_probe_.running()) return;
  clock_probe_.start();
  connection_->send(encode_message(clock_probe_.question(on_host_clock(SteadyClock::now()))));
}

void ControlClient::clock_answered(const Json& message, SteadyClock::time_point now) {
  const auto [ask, result] = clock_probe_.answer(message, on_host_clock(now));
  if (ask && connection_) {
    connection_->send(encode_message(clock_probe_.question(on_host_clock(SteadyClock::now()))));
  }
  if (!result) return;
  {
    const Lock lock(mutex_);
    clock_ = result;
    has_clock_ = true;
    ++clocks_compared_;
  }
  changed_.notify_all();
  clock_timer_.expires_after(options_.clock_period);
  clock_timer_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) compare_clocks();
  });
}

std::optional<ClockOffset> ControlClient::measure_clock(std::chrono::milliseconds deadline) {
  Lock lock(mutex_);
  const std::uint64_t before = clocks_compared_;
  asio::post(io_, [this] { compare_clocks(); });
  changed_.wait_until(lock, SteadyClock::now() + deadline,
                      [&] { return clocks_compared_ > before || failure_ || closed_; });
  if (clocks_compared_ == before) return std::nullopt;
  has_clock_ = false;
  return std::exchange(clock_, std::nullopt);
}

void ControlClient::send(std::string message) {
  asio::post(io_, [this, message = std::move(message)] {
    if (connection_) connection_->send(message);
  });
}

void ControlClient::set(const std::string& key, const std::string& value) {
  send(encode_message({{"t", "set"}, {"k", key}, {"v", encode_value(value)}}));
}

std::optional<std::string> ControlClient::get_within(const std::string& key, std::chrono::milliseconds deadline) {
  Lock lock(mutex_);
  const std::int64_t id = next_get_++;
  gets_[id];
  send(encode_message({{"t", "get"}, {"k", key}, {"id", id}}));
  wait(
      lock, SteadyClock::now() + deadline, [&] { return gets_.at(id).has_value(); }, "'" + key + "'");
  return std::move(gets_.extract(id).mapped());
}

std::vector<std::string> ControlClient::gather(const std::string& name, const std::string& value) {
  const auto size = static_cast<std::size_t>(options_.world.size);
  std::string message = encode_message({{"t", "gather"}, {"n", name}, {"v", encode_value(value)}});
  Lock lock(mutex_);
  if (!gathers_.emplace(name, Gather{std::vector<std::string>(size), 0}).second) {
    throw CommError("rank " + std::to_string(options_.world.rank) + " takes part in gather '" + name +
                    "' twice at a time");
  }
  send(std::move(message));
  const bool came = wait(
      lock, SteadyClock::now() + options_.timeout, [&] { return gathers_.at(name).received >= size; },
      "'" + name + "'");
  const std::string missing = came ? std::string() : ask_missing(lock, "who", name);
  auto node = gathers_.extract(name);
  if (!came) {
    throw TimedOut("control: '" + name + "' timed out after " + seconds_of_timeout() + "; missing: " + missing);
  }
  return std::move(node.mapped().values);
}

std::string ControlClient::not_waiting_for(const std::string& key) {
  Lock lock(mutex_);
  return ask_missing(lock, "who-sets", key);
}

std::string ControlClient::ask_missing(Lock& lock, const char* question, const std::string& name) {
  missing_.erase(name);
  send(encode_message({{"t", question}, {"n", name}}));
  const bool came = wait(
      lock, SteadyClock::now() + options_.heartbeat, [&] { return missing_.count(name) != 0; }, "'" + name + "'");
  return came ? missing_.at(name) : "unknown, rank 0 (pid " + std::to_string(server_pid_) + ") does not answer";
}

void ControlClient::fail(const RankFailure& failure) {
  {
    const Lock lock(mutex_);
    if (failure_ || all_finished_) return;
  }
  send(encode_message({{"t", "fail"},
                       {"rank", failure.rank},
                       {"step", failure.step},
                       {"cause", failure.cause},
                       {"departure", static_cast<int>(failure.departure)}}));
  if (!on_control_thread()) {
    // Rank 0 sends back this failure, or an earlier one of another rank, unless rank 0 is stopped.
    Lock lock(mutex_);
    const bool stopped = SteadyClock::now() - last_beat_ > kMissedHeartbeats * options_.heartbeat;
    if (!stopped) changed_.wait_for(lock, kClientFailureHandover, [this] { return failure_ || all_finished_; });
  }
  publish(failure);
}

PeerState ControlClient::peer_state(int rank) const {
  const Lock lock(mutex_);
  if (rank == options_.world.rank) return PeerState::kAlive;
  if (rank != 0) return states_[static_cast<std::size_t>(rank)];
  if (stage_ == Stage::kClosed) return PeerState::kGone;
  return SteadyClock::now() - last_beat_ > kMissedHeartbeats * options_.heartbeat ? PeerState::kLate : states_[0];
}

void ControlClient::leave() {
  send(encode_message({{"t", "finish"}}));
  if (on_control_thread()) return;
  // The process may end at once, and then what lies in its connection is lost. Rank 0 answers in order.
  Lock lock(mutex_);
  missing_.erase("");
  send(encode_message({{"t", "who"}, {"n", ""}}));
  const auto over = [this] { return missing_.count("") != 0 || failure_ || all_finished_ || closed_; };
  changed_.wait_for(lock, kClientFailureHandover, over);
}

void ControlClient::finish() {
  send(encode_message({{"t", "finish"}}));
  Lock lock(mutex_);
  if (!wait(
          lock, SteadyClock::now() + options_.timeout, [&] { return all_finished_; }, "the end of all ranks")) {
    std::string missing;
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      if (states_[rank] == PeerState::kFinished || static_cast<int>(rank) == options_.world.rank) continue;
      missing +=
          (missing.empty() ? "rank " : "; rank ") + std::to_string(rank) + ", " + std::string(name_of(states_[rank]));
    }
    throw TimedOut("control: not every rank finished within " + seconds_of_timeout() + "; missing: " + missing);
  }
}

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::connect(const ControlOptions& options, const ControlEndpoint& server) {
  return std::make_unique<ControlClient>(options, server);
}

}  // namespace dtrain::comm
