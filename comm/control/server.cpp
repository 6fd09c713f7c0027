#include "control/server.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include <asio/dispatch.hpp>
#include <asio/post.hpp>

#include "control/protocol.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kHelloDeadline{5'000};  // a peer that dawdles must not hold a connection
constexpr std::size_t kGatheredBytes = 256u << 10;          // values are sent on in messages of about this size
constexpr std::chrono::milliseconds kServerFailureHandover{300};
constexpr std::chrono::seconds kGatherFirstLine{10};  // of a wait for all ranks
constexpr std::chrono::seconds kGatherLaterLines{30};
constexpr int kMostMissingNamed = 8;
constexpr std::chrono::milliseconds kServerClosing{500};

Json failed_message(const RankFailure& failure) {
  return {{"t", "failed"},
          {"rank", failure.rank},
          {"step", failure.step},
          {"cause", failure.cause},
          {"departure", static_cast<int>(failure.departure)}};
}

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::serve(const ControlOptions& options, const ControlEndpoint& listen_on,
                                                  ControlEndpoint* bound) {
  return std::make_unique<ControlServer>(options, listen_on, bound);
}

ControlServer::ControlServer(const ControlOptions& options, const ControlEndpoint& listen_on, ControlEndpoint* bound)
    : PlaneBase(options),
      peers_(static_cast<std::size_t>(options.world.size)),
      listener_(io_, "control", options_.log, options_.security, std::min(kHelloDeadline, options_.timeout)),
      heartbeat_(io_) {
  if (options_.world.rank != 0) {
    throw CommError("rank " + std::to_string(options_.world.rank) + " cannot serve the control plane: rank 0 does");
  }
  peers_[0].state = PeerState::kAlive;
  peers_[0].pid = getpid();
  peers_[0].host = options_.host_name;
  if (bound) *bound = listen_on;
  if (options_.world.size == 1) return;
  try {
    const auto at = listener_.open({asio::ip::make_address(listen_on.address), listen_on.port});
    if (bound) bound->port = at.port();
  } catch (const std::system_error& error) {
    throw CommError("rank 0 cannot listen on " + listen_on.address + ":" + std::to_string(listen_on.port) + ": " +
                        error.code().message(),
                    "give a numeric address of one of this machine's interfaces, and a free port");
  }
  listener_.start([this] { return make_handshake(); }, [this](Proven proven) { welcome(std::move(proven)); });
  beat();
  start_thread();
}

ControlServer::~ControlServer() {
  if (!has_thread()) return;
  // Messages queued for the others (the failure, the end) still go out; the wait for a peer that reads nothing ends
  // after kServerClosing.
  bool closing = false;  // guarded by mutex_
  asio::post(io_, [this, &closing] {
    listener_.close();
    heartbeat_.cancel();
    for (Peer& peer : peers_) {
      if (const auto connection = peer.connection) connection->close_when_sent("rank 0 ends");
    }
    const Lock lock(mutex_);
    closing = true;
    changed_.notify_all();
  });
  Lock lock(mutex_);
  changed_.wait_for(lock, kServerClosing, [this, &closing] {
    return closing && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.connection; });
  });
  lock.unlock();
  stop_thread();
  for (Peer& peer : peers_) {
    if (const auto stuck = peer.connection) stuck->close("rank 0 ends");
  }
}

void ControlServer::beat() {
  heartbeat_.expires_after(options_.heartbeat);
  heartbeat_.async_wait([this](asio::error_code cancelled) {
    if (cancelled || !listener_.is_open()) return;
    std::string message;
    {
      const Lock lock(mutex_);
      message = encode_message(states_message());
    }
    for (const Peer& peer : peers_) {
      if (peer.connection && peer.connection->idle()) peer.connection->send(message);
    }
    beat();
  });
}

Json ControlServer::states_message() const {
  Json states = Json::array();
  for (int rank = 0; rank < options_.world.size; ++rank) states.push_back(static_cast<int>(state_now(rank)));
  return {{"t", "beat"}, {"states", states}};
}

PeerState ControlServer::state_now(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (rank == 0 || peer.state != PeerState::kAlive) return peer.state;
  return SteadyClock::now() - peer.last_beat > kMissedHeartbeats * options_.heartbeat ? PeerState::kLate
                                                                                      : PeerState::kAlive;
}

PeerState ControlServer::peer_state(int rank) const {
  const Lock lock(mutex_);
  return state_now(rank);
}

std::string ControlServer::describe_peer(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::string text = process_text(rank, peer.pid, peer.host);
  text += ", " + std::string(name_of(state_now(rank)));
  if (state_now(rank) == PeerState::kLate) {
    text += " for " + format_duration(SteadyClock::now() - peer.last_beat);
  }
  if (peer.step >= 0) text += ", at step " + std::to_string(peer.step);
  return text;
}

std::string ControlServer::describe_missing(const std::string& name, int most) const {
  const auto found = gathers_.find(name);
  std::string text;
  int missing = 0;
  for (int rank = 0; rank < options_.world.size; ++rank) {
    if (found != gathers_.end() && found->second[static_cast<std::size_t>(rank)]) continue;
    if (++missing <= most) text += (text.empty() ? "" : "; ") + describe_peer(rank);
  }
  if (missing > most) text += " and " + count_of(static_cast<std::size_t>(missing - most), "more rank");
  return text;
}

std::string ControlServer::describe_not_waiting(const std::string& key) const {
  std::set<int> waiting;
  if (const auto found = waiting_for_key_.find(key); found != waiting_for_key_.end()) {
    for (const Waiter& waiter : found->second) waiting.insert(waiter.rank);
  }
  std::string text;
  for (int rank = 0; rank < options_.world.size; ++rank) {
    if (!waiting.contains(rank)) text += (text.empty() ? "" : "; ") + describe_peer(rank);
  }
  return text.empty() ? "none, every rank does" : text;
}

std::string ControlServer::not_waiting_for(const std::string& key) {
  const Lock lock(mutex_);
  return describe_not_waiting(key);
}

void ControlServer::send_to(int rank, std::string message) {
  if (!has_thread()) return;
  asio::dispatch(io_, [this, rank, message = std::move(message)] {
    if (const auto connection = peers_[static_cast<std::size_t>(rank)].connection) connection->send(message);
  });
}

void ControlServer::send_to_all(const std::string& message) {
  for (int rank = 1; rank < options_.world.size; ++rank) send_to(rank, message);
}

void ControlServer::set(const std::string& key, const std::string& value) {
  const Json encoded = encode_value(value);
  // A value over the limit must be an error for the setter, not for the getters.
  encode_message(Json{{"t", "value"}, {"id", 0}, {"v", encoded}});
  std::vector<Waiter> waiters;
  {
    const Lock lock(mutex_);
    store_[key] = value;
    if (const auto found = waiting_for_key_.find(key); found != waiting_for_key_.end()) {
      waiters = std::move(found->second);
      waiting_for_key_.erase(found);
    }
  }
  changed_.notify_all();
  for (const Waiter& waiter : waiters) {
    if (waiter.rank == 0) continue;
    send_to(waiter.rank, encode_message({{"t", "value"}, {"id", waiter.id}, {"v", encoded}}));
  }
}

std::optional<std::string> ControlServer::get_within(const std::string& key, std::chrono::milliseconds deadline) {
  Lock lock(mutex_);
  if (store_.count(key) == 0) {
    auto& waiters = waiting_for_key_[key];  // read at the time-outs of other ranks
    if (std::none_of(waiters.begin(), waiters.end(), [](const Waiter& w) { return w.rank == 0; }))
      waiters.push_back({0, -1});
  }
  if (!wait(
          lock, SteadyClock::now() + deadline, [&] { return store_.count(key) != 0; }, "'" + key + "'")) {
    return std::nullopt;
  }
  return store_.at(key);
}

// The name is free again before the result is sent: a rank that has its result may begin the next gather of this name
// while others still read theirs.
void ControlServer::contribute(const std::string& name, int rank, const std::string& value) {
  Values complete;
  {
    const Lock lock(mutex_);
    Values& values = gathers_[name];
    values.resize(peers_.size());
    auto& mine = values[static_cast<std::size_t>(rank)];
    if (mine) throw CommError("rank " + std::to_string(rank) + " takes part in gather '" + name + "' twice at a time");
    mine = value;
    if (!std::all_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); })) return;
    complete = std::move(values);
    gathers_.erase(name);
    auto& result = gathered_[name];
    result.clear();  // may hold an earlier result that came too late for rank 0
    for (const auto& v : complete) result.push_back(*v);
  }
  changed_.notify_all();
  for (std::size_t from = 0; from < complete.size();) {
    Json part = {{"t", "gathered"}, {"n", name}, {"from", from}, {"v", Json::array()}};
    std::size_t bytes = 0;
    do {
      bytes += complete[from]->size();
      part["v"].push_back(encode_value(*complete[from++]));
    } while (from < complete.size() && bytes + complete[from]->size() < kGatheredBytes);
    send_to_all(encode_message(part));
  }
}

std::vector<std::string> ControlServer::gather(const std::string& name, const std::string& value) {
  encode_message(Json{{"t", "gathered"}, {"n", name}, {"from", 0}, {"v", Json::array({encode_value(value)})}});
  contribute(name, 0, value);
  const auto began = SteadyClock::now();
  const auto deadline = began + options_.timeout;
  auto next_line = began + kGatherFirstLine;
  ShownWait shown;
  Lock lock(mutex_);
  while (!wait(
      lock, std::min(deadline, next_line), [&] { return gathered_.count(name) != 0; }, shown, "'" + name + "'")) {
    const auto now = SteadyClock::now();
    if (now >= deadline) {
      throw TimedOut("control: '" + name + "' timed out after " + seconds_of_timeout() +
                     "; missing: " + describe_missing(name));
    }
    next_line = now + kGatherLaterLines;
    const std::string missing = describe_missing(name, kMostMissingNamed);
    lock.unlock();  // a log that is slow must not stop the control thread
    options_.log->info("rank 0 waits at '{}' for {} ({} so far, at most {})", name, missing,
                       format_duration(now - began), seconds_of_timeout());
    lock.lock();
  }
  auto node = gathered_.extract(name);
  return std::move(node.mapped());
}

void ControlServer::publish_to_all(const RankFailure& failure) {
  publish(failure, [&] { send_to_all(encode_message(failed_message(failure))); });
}

// Publishing happens on the control thread alone, so all ranks get the same first failure. The caller then waits, at
// most kServerFailureHandover, until the ranks have acknowledged it ("noted"): afterwards it may end its process.
void ControlServer::fail(const RankFailure& failure) {
  if (!has_thread()) {
    publish(failure);
    return;
  }
  asio::post(io_, [this, failure] { publish_to_all(failure); });
  if (on_control_thread()) return;
  Lock lock(mutex_);
  changed_.wait_for(lock, kServerFailureHandover, [this] {
    if (all_finished_) return true;
    for (int rank = 1; failure_ && rank < options_.world.size; ++rank) {
      const Peer& peer = peers_[static_cast<std::size_t>(rank)];
      // A stopped rank receives nothing until it continues, so the wait ignores it.
      if (peer.connection && !peer.acknowledged_failure && state_now(rank) != PeerState::kLate) return false;
    }
    return failure_.has_value();
  });
}

void ControlServer::mark_finished(int rank) {
  bool all = false;
  {
    const Lock lock(mutex_);
    peers_[static_cast<std::size_t>(rank)].state = PeerState::kFinished;
    all = std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.state == PeerState::kFinished; });
    if (all && !failure_) all_finished_ = true;
  }
  if (!all) return;
  changed_.notify_all();
  send_to_all(encode_message({{"t", "finished"}}));
}

std::optional<ClockOffset> ControlServer::measure_clock(std::chrono::milliseconds) {
  return ClockOffset{.time = on_host_clock(SteadyClock::now())};
}

void ControlServer::finish() {
  mark_finished(0);
  Lock lock(mutex_);
  if (!wait(
          lock, SteadyClock::now() + options_.timeout, [&] { return all_finished_; }, "the end of all ranks")) {
    std::string missing;
    for (int rank = 0; rank < options_.world.size; ++rank) {
      if (state_now(rank) != PeerState::kFinished) missing += (missing.empty() ? "" : "; ") + describe_peer(rank);
    }
    throw TimedOut("control: not every rank finished within " + seconds_of_timeout() + "; missing: " + missing);
  }
}

Handshake ControlServer::make_handshake() {
  return Handshake::listening(options_.secret,
                              {.purpose = kControlPurpose,
                               .session = options_.session,
                               .generation = options_.generation,
                               .size = options_.world.size,
                               .pid = getpid(),
                               .host = options_.host_name},
                              [this](const Introduction& other) { return refuse_reason(other); });
}

std::string ControlServer::refuse_reason(const Introduction& other) const {
  if (other.rank < 1 || other.rank >= other.size) {
    return "it is rank " + std::to_string(other.rank) + " of " + std::to_string(other.size);
  }
  const Lock lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(other.rank)];
  if (peer.state == PeerState::kConnecting) return {};
  return "rank " + std::to_string(other.rank) + " is taken by pid " + std::to_string(peer.pid);
}

void ControlServer::welcome(Proven proven) {
  const int rank = static_cast<int>(proven.other.rank);
  std::string states;
  std::optional<RankFailure> failed;
  std::shared_ptr<Connection> connection;
  {
    const Lock lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.state = PeerState::kAlive;
    peer.last_beat = SteadyClock::now();
    peer.pid = proven.other.pid;
    peer.host = proven.other.host;
    peer.connection = connection = std::make_shared<Connection>(std::move(proven), options_.host_silence);
    states = encode_message(states_message());
    failed = failure_;
  }
  connection->start([this, rank](const Json& message) { handle(rank, message); },
                    [this, rank, peer = connection->peer()](const std::string& reason, bool malformed) {
                      if (malformed) {
                        options_.log->warn("control: ended the connection from {} (rank {}): {}", peer, rank, reason);
                      }
                      lost(rank, reason);
                    });
  connection->send(states);
  if (failed) connection->send(encode_message(failed_message(*failed)));
}

void ControlServer::handle(int rank, const Json& message) {
  const auto now = SteadyClock::now();
  const std::string type = text_member(message, "t");
  Lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.last_beat = now;
  if (type == "beat") {
    peer.step = integer_member(message, "step");
  } else if (type == "noted") {
    peer.acknowledged_failure = true;
    lock.unlock();
    changed_.notify_all();
  } else if (type == "get") {
    const std::string key = text_member(message, "k");
    const std::int64_t id = integer_member(message, "id");
    const auto found = store_.find(key);
    if (found == store_.end()) return waiting_for_key_[key].push_back({rank, id});
    const std::string value = found->second;
    lock.unlock();
    send_to(rank, encode_message({{"t", "value"}, {"id", id}, {"v", encode_value(value)}}));
  } else if (type == "ping") {
    lock.unlock();
    send_to(rank, encode_message(clock_answer(message, on_host_clock(now))));
  } else if (type == "who-sets") {
    const std::string key = text_member(message, "n");
    const std::string text = describe_not_waiting(key);
    lock.unlock();
    send_to(rank, encode_message({{"t", "missing"}, {"n", key}, {"text", text}}));
  } else if (type == "who") {
    const std::string name = text_member(message, "n");
    const std::string text = describe_missing(name);
    lock.unlock();
    send_to(rank, encode_message({{"t", "missing"}, {"n", name}, {"text", text}}));
  } else {
    lock.unlock();
    if (type == "set") return set(text_member(message, "k"), decode_value(member(message, "v")));
    if (type == "gather") return contribute(text_member(message, "n"), rank, decode_value(member(message, "v")));
    if (type == "finish") return mark_finished(rank);
    if (type == "fail") {
      return publish_to_all({static_cast<int>(integer_member(message, "rank")), integer_member(message, "step"),
                             text_member(message, "cause"), departure_member(message)});
    }
    throw DataError("unknown message '" + type + "'");
  }
}

// A lost connection is a failure of the run unless the rank has announced its end, or this server is closing.
void ControlServer::lost(int rank, const std::string& reason) {
  RankFailure failure;
  bool fatal = false;
  {
    const Lock lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const Departure departure = peer.connection && peer.connection->silent() ? Departure::kSilent : Departure::kGone;
    peer.connection.reset();
    fatal = peer.state != PeerState::kFinished && listener_.is_open();
    if (fatal) peer.state = PeerState::kGone;
    failure = {rank, peer.step, process_text(rank, peer.pid, peer.host) + " is gone: " + reason, departure};
  }
  changed_.notify_all();
  if (!fatal) return;
  publish_to_all(failure);
  // The new states go out at once, not with the next heartbeat, so the others' time-outs name this rank as dead.
  Lock lock(mutex_);
  const std::string states = encode_message(states_message());
  lock.unlock();
  send_to_all(states);
}

}  // namespace dtrain::comm
