// The side of the control plane of every rank but 0: one connection to rank 0.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "control/auth.h"
#include "control/clock_probe.h"
#include "control/connection.h"
#include "control/plane_base.h"

namespace dtrain::comm {

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
  void answer_challenge(const Json& message);
  void welcome(const Json& message);
  void closed(const std::string& reason, bool malformed);
  void beat();
  void compare_clocks();
  void clock_answered(const Json& message, SteadyClock::time_point now);

  void send(std::string frame);  // any thread
  // Returns rank 0's answer to a question of this type about a gather or a key.
  std::string ask_missing(Lock& lock, const char* question, const std::string& name);
  std::string not_waiting_for(const std::string& key) override;

  const std::string server_name_;  // "127.0.0.1:4711"
  asio::ip::tcp::endpoint server_;
  asio::steady_timer heartbeat_;
  asio::steady_timer retry_timer_;
  asio::steady_timer clock_timer_;
  std::chrono::milliseconds retry_after_{5};
  Handshake handshake_;
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

}  // namespace dtrain::comm
