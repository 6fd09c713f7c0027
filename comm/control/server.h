// Rank 0's side of the control plane: owns the store, the gathers and the connections of all other ranks.
//
// State is guarded by mutex_; connections are used on the control thread only, so other threads post to it.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio/steady_timer.hpp>

#include "control/handshake.h"
#include "control/plane_base.h"
#include "control/socket.h"

namespace dtrain::comm {

class ControlServer final : public PlaneBase {
 public:
  ControlServer(const ControlOptions& options, const ControlEndpoint& listen_on, ControlEndpoint* bound);
  ~ControlServer() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds deadline) override;
  std::vector<std::string> gather(const std::string& name, const std::string& value) override;
  void fail(const RankFailure& failure) override;
  std::optional<ClockOffset> measure_clock(std::chrono::milliseconds deadline) override;
  PeerState peer_state(int rank) const override;
  void finish() override;
  void leave() override { mark_finished(0); }

 private:
  struct Peer {
    std::shared_ptr<Connection> connection;  // control thread only
    PeerState state = PeerState::kConnecting;
    SteadyClock::time_point last_beat;
    std::int64_t pid = 0;
    std::string host;
    std::int64_t step = -1;
    bool acknowledged_failure = false;
  };
  struct Waiter {
    int rank;
    std::int64_t id;  // id of its question; rank 0 needs none
  };
  using Values = std::vector<std::optional<std::string>>;

  Handshake make_handshake();
  std::string refuse_reason(const Introduction& other) const;  // empty: welcome
  void welcome(Proven proven);
  void beat();
  // Any thread, but not with mutex_ held: a broken connection makes the sender lock it.
  void send_to(int rank, std::string message);
  void send_to_all(const std::string& message);
  Json states_message() const;                // mutex_ held
  PeerState state_now(int rank) const;        // mutex_ held
  std::string describe_peer(int rank) const;  // mutex_ held
  // At most `most` ranks are named. Called with mutex_ held.
  std::string describe_missing(const std::string& name, int most = std::numeric_limits<int>::max()) const;
  std::string describe_not_waiting(const std::string& key) const;  // mutex_ held
  std::string not_waiting_for(const std::string& key) override;
  void contribute(const std::string& name, int rank, const std::string& value);
  void mark_finished(int rank);
  void publish_to_all(const RankFailure& failure);

  void handle(int rank, const Json& message);
  void lost(int rank, const std::string& reason);

  std::vector<Peer> peers_;
  std::map<std::string, std::string> store_;
  std::map<std::string, std::vector<Waiter>> waiting_for_key_;
  std::map<std::string, Values> gathers_;
  std::map<std::string, std::vector<std::string>> gathered_;  // complete, rank 0 has yet to take them
  ProvingListener listener_;                                  // control thread only
  asio::steady_timer heartbeat_;
};

}  // namespace dtrain::comm
