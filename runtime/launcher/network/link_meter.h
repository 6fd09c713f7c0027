// Measures a connection between two hosts: its round trip and its bandwidth, in a fraction of a second. Both ends first
// prove that they know the launch's secret; a connection without that proof is closed. All messages are bounded, and
// every wait has a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::launcher {

// The facts that both ends of a measurement know. `server` is the number of the host that is meant to answer: an
// address that several hosts have must not be taken for another host.
struct LinkKey {
  std::string secret;
  int server = 0;
};

// Answers on one address, on a thread of its own for the life of the object; one connection at a time.
class LinkServer {
 public:
  // SystemError if it cannot listen there.
  LinkServer(const std::string& address, LinkKey key);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;
  int port() const { return port_; }

 private:
  void serve(int stop) const;

  LinkKey key_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd: ends the thread
  int port_ = 0;
  std::thread thread_;
};

struct LinkTarget {
  std::string from;  // this end's address
  std::string address;
  int port = 0;
};

// Returns the median of some round trips of a few bytes. CommError: no connection, the wrong server, or too slow.
Nanoseconds measure_round_trip(const LinkTarget& target, const LinkKey& key);

// Bits per second that arrive at the server while this end sends for `duration`. The first part does not count: TCP
// needs it to reach full speed, and a traffic shaper lets a burst pass. CommError as above.
double measure_bandwidth(const LinkTarget& target, const LinkKey& key, Nanoseconds duration);

// One end of a measuring connection: bounded reads and writes with a deadline, and the proof that the other end knows
// the secret. For tests besides link_meter.cpp. One thread.
class LinkStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LinkStream(UniqueFd fd, Time deadline);
  // CommError gives the reason if there is no connection.
  static LinkStream connect(const LinkTarget& target, Time deadline);

  // CommError: the other end is gone, or the deadline has passed. `read` returns exactly `bytes` bytes.
  std::string read(std::size_t bytes);
  void write(const std::string& text);
  // Makes a single read or write. Returns the number of bytes; 0 at the end of the stream or at the deadline.
  std::size_t read_some(char* buffer, std::size_t size);
  std::size_t write_some(const char* buffer, std::size_t size);
  void end_writing();
  void set_deadline(Time deadline) { deadline_ = deadline; }

  // Comes first on a connection, on both sides. CommError: the other side does not know the secret, or is another host
  // than intended.
  void prove(comm::Handshake handshake);

 private:
  bool wait(short events) const;

  UniqueFd fd_;
  Time deadline_;
};

// Sessions with `dtrain host-probe` on other hosts, and the messages that they exchange.

// The messages between dtrain and its `host-probe` on another host. The greeting checks that both have the same
// version.
namespace probe {

inline constexpr int kProtocol = 1;
inline constexpr std::size_t kLongestLine = 1 << 20;
// The greeting: {"dtrain": version, "protocol", "host": name, "key": host::HostIdentity::key}
inline constexpr const char* kGreeting = "{\"dtrain\":";

// Requests are {"do": one of these, ...}. Answers are as noted here, or {"error", "remedy"}.
inline constexpr const char* kInterfaces = "interfaces";  // HostInterfaces
inline constexpr const char* kRoutes = "routes";          // "to": addresses -> "from": the address used for each
inline constexpr const char* kServe = "serve";            // "address", "secret", "server" -> "port"; until the next
inline constexpr const char* kRoundTrip = "round_trip";   // "from", "address", "port", "secret", "server" -> "ns"
inline constexpr const char* kBandwidth = "bandwidth";    // the same and "duration_ns" -> "bits_per_second"
inline constexpr const char* kClock = "clock";            // -> "wall_ns"
inline constexpr const char* kExists = "exists";          // "path" -> "exists"
inline constexpr const char* kChecks = "checks";          // "folder", "needs_mpi", "needs_slurm" -> "findings"
inline constexpr const char* kLimits = "limits";          // "ranks": RanksOfHost -> MachineLimits, measured if unknown
inline constexpr const char* kGpuLimits =
    "gpu_limits";  // "gpus": ids (none: all), "program" -> HostGpuLimits, likewise

}  // namespace probe

// A session with `dtrain host-probe` on another host (or this one), over a remote shell. The destructor ends it on both
// sides. One thread.
class ProbeSession {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Starts the command without waiting for it. `host`: its name in messages. SystemError if it cannot be started.
  ProbeSession(std::string host, const std::vector<std::string>& command);

  // Waits for the greeting. ConfigError gives the reason if there is none: no ssh, no dtrain there, another version.
  void greet(Time deadline);
  const std::string& host() const { return host_; }
  const std::string& name() const { return name_; }  // the host's own name
  const std::string& key() const { return key_; }    // host::HostIdentity::key

  // Sends a request; receive() fetches the answer later, so that several hosts work at once. The answer is an object,
  // {"error", "remedy"} if the request failed. CommError: the host is gone or does not answer in time.
  void send(const Json& request);
  Json receive(Time deadline);

 private:
  bool read_more(Time deadline);  // false: the end, or the deadline
  bool next_line(std::string& line, Time deadline);
  std::string last_words();

  std::string host_;
  std::string name_;
  std::string key_;
  std::string program_;  // the remote shell
  UniqueFd input_;
  UniqueFd output_;
  UniqueFd errors_;
  std::string buffered_;
  std::string error_text_;
  Process process_;
};

// Sends one request to all hosts, or one to each. Returns the answers in that order, once all have arrived.
std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline);
std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline);

}  // namespace dtrain::launcher
