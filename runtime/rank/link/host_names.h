// Waiting for a host of the run that has no name or no listener yet: pods start in any order, and the name of one
// resolves only once it runs. Blocks; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/log.h"

namespace dtrain::run {

// The addresses of a host's name, as the resolver orders them; `why` is the reason if there are none.
struct Resolved {
  std::vector<std::string> addresses;
  std::string why;
};
Resolved resolve(const std::string& name);

struct HostWait {
  std::string name;  // of the host, or its address
  std::uint16_t port = 0;
  std::chrono::milliseconds timeout{600'000};
  std::string waiter;  // "rank 3": for the log and for errors
  Logger log;          // gets a line after 2 s, and then every 15 s
};

// Waits until the name resolves and something listens there. Returns its address. CommError at the deadline says
// whether the name does not resolve, or which error the connection gives.
std::string await_listener(const HostWait& wait);

// Waits until the name resolves to an address of this machine, and returns the address. CommError at the deadline.
std::string await_own_address(const HostWait& wait);

}  // namespace dtrain::run
