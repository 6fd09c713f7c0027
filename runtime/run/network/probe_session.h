// Sessions with `dtrain host-probe` on other hosts, and the messages that they exchange.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
