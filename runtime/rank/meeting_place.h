// Where keepers meet (dtrain/rank/keepers.h): a store, in which the others find the control plane, and that plane.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/comm/control.h"
#include "dtrain/comm/rendezvous_store.h"
#include "dtrain/rank/keepers.h"
#include "membership.h"

namespace dtrain::rank {

// The host that serves a control plane is its rank 0, and host 0 has that host's number.
inline int plane_rank(int host, int server) {
  return host == server ? 0 : host == 0 ? server : host;
}
inline int host_of_plane_rank(int rank, int server) {
  return plane_rank(rank, server);  // it exchanges the two
}

inline std::string host_text(int host, const std::string& name) {
  return "host " + std::to_string(host) + (name.empty() ? "" : " (" + name + ")");
}

// The key under which a host tells of itself, and what the others learn under the next two.
std::string key_of_host(int host);
inline constexpr const char* kAgreed = "agreed";
inline constexpr const char* kMissing = "missing";

// The options of the control plane that `server` serves. `secret`: empty where that host makes one.
comm::ControlOptions plane_options(const KeeperOptions& options, int server, const std::string& session,
                                   const std::string& secret);
HostWait host_wait(const KeeperOptions& options);

struct MeetingPlace {
  std::unique_ptr<comm::RendezvousStore> store;  // closed at the end of the meeting: rank 0 serves the next one
  std::unique_ptr<comm::ControlPlane> plane;
  std::string address;

  // Opens the place on this host: host 0 at MASTER_ADDR, another one at its own address. CommError: it cannot listen.
  static std::unique_ptr<MeetingPlace> open(const KeeperOptions& options, const std::string& secret);

  std::vector<std::optional<Json>> hosts;  // what they have told; empty: that one has not come
  // Looks for those that are missing, for `patience` at most.
  void look(std::chrono::milliseconds patience);
};

}  // namespace dtrain::rank
