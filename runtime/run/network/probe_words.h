// The messages between dtrain and its `host-probe` on another host. The greeting checks that both have the same
// version.
#pragma once

#include <cstddef>

namespace dtrain::run::probe {

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

}  // namespace dtrain::run::probe
