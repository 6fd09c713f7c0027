// One rank's connection to the monitor: its socket, its ring and its dump. Every record that the rank committed reaches
// the dump, also after the rank was killed. One thread, the monitor's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/base/unix_socket.h"
#include "monitor/dump.h"
#include "monitor/format.h"
#include "monitor/prometheus_endpoint.h"
#include "ring.h"

namespace dtrain::profile {

// Facts about the monitor that all connections share.
struct MonitorFacts {
  std::string agent_id;
  std::string host;
  std::filesystem::path profile_folder;
  std::set<int> ranks;  // ranks for which it waits
  Json header;
};

class RankConnection {
 public:
  // `is_connected`: returns true if a rank has a connection.
  RankConnection(UnixSocket socket, const MonitorFacts& facts, const Clock& clock, Logger logger,
                 std::function<bool(int)> is_connected)
      : socket_(std::move(socket)),
        facts_(facts),
        clock_(clock),
        logger_(std::move(logger)),
        is_connected_(std::move(is_connected)),
        accepted_at_(clock.monotonic()) {}

  // An event on the rank's socket. kGone: close() it. kStop: the starter wants the monitor to end.
  enum class Event { kNothing, kGone, kStop };
  Event serve();
  // Writes the rank's records since the last call.
  void drain();
  // Records the memory of the rank's process when that is due again.
  void sample_memory(std::chrono::nanoseconds shortest_period);
  // Writes the rest of the ring and the "end" record.
  void close();
  // Reports to the rank that records are being lost. False: the message could not be sent.
  bool report(const std::string& error);

  int fd() const { return socket_.fd(); }
  bool introduced() const { return ring_ != nullptr; }
  Nanoseconds accepted_at() const { return accepted_at_; }
  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  std::optional<std::string> error() const { return dump_ ? dump_->error() : std::nullopt; }
  std::uint64_t lost() const { return dump_ ? dump_->lost() : 0; }
  RankTotals totals() const;
  void sync() {
    if (dump_) dump_->sync();
  }

 private:
  void introduce(const Json& hello, UnixMessage& message);
  void write_dropped();
  void release();
  void write_memory(Nanoseconds now);

  UnixSocket socket_;
  const MonitorFacts& facts_;
  const Clock& clock_;
  Logger logger_;
  std::function<bool(int)> is_connected_;
  Nanoseconds accepted_at_;
  int rank_ = -1;
  pid_t pid_ = 0;
  std::unique_ptr<RingReader> ring_;
  std::unique_ptr<DumpWriter> dump_;
  std::unique_ptr<BoundedDump> bounded_;  // writes to dump_
  Nanoseconds introduced_at_{0};
  Nanoseconds next_memory_{0};
  RankTotals totals_;
  std::uint64_t records_ = 0;
  std::uint64_t dropped_ = 0;
  bool finished_ = false;
  bool damaged_ = false;
};

}  // namespace dtrain::profile
