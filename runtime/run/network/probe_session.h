// A conversation with `dtrain host-probe` on another host (or this one), over a remote shell. It ends with this object,
// and the host's side with it. One thread.
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

  // Starts it, waits for nothing. `host`: as people call it. SystemError where `command` cannot be started.
  ProbeSession(std::string host, const std::vector<std::string>& command);

  // Waits for the first line. ConfigError says why there is none: no ssh, no dtrain there, another version.
  void greet(Time deadline);
  const std::string& host() const { return host_; }
  const std::string& name() const { return name_; }  // what the host calls itself
  const std::string& key() const { return key_; }    // host::HostIdentity::key

  // A request, whose answer is fetched later: several hosts work at once. The answer is an object; a request that
  // failed is answered by {"error", "remedy"}. CommError: the host has ended or does not answer in time.
  void send(const Json& request);
  Json receive(Time deadline);

 private:
  bool read_more(Time deadline);  // false: the end, or too late
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
