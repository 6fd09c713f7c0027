// A session with `dtrain host-probe` on another host (or this one), over a remote shell. The destructor ends it on both
// sides. One thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dtrain/base/fd.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
