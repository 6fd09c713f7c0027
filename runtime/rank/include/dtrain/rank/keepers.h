// The keepers of a run's hosts: on each host the process that has started its ranks and starts them again. No launcher
// stands above them. They meet at MASTER_ADDR, where host 0's keeper serves a store until all have come, and are then
// connected by a control plane of their own, on which host n is rank n. One thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/environment.h"

namespace dtrain::rank {

struct KeeperOptions {
  NodeEnvironment node;
  std::string host_name;
  std::filesystem::path secret_file;           // as RankEnvironment::run_secret_file
  std::string network_interface;               // as RankEnvironment::network_interface
  std::chrono::milliseconds timeout{600'000};  // of the meeting
  std::size_t before = 0;  // so many hosts that have just parted wait for others only a moment; 0: they have not
  Logger log;
};

class Keepers {
 public:
  // Makes what all hosts get from what each host that is present has given, in their order.
  using Agree = std::function<Json(const std::vector<Json>& all)>;

  // Waits until the keepers of all hosts are connected, and again if one is lost meanwhile; for NodeEnvironment::least
  // hosts, with host 0 among them, `last_call` is long enough. Host 0's calls `agree`.
  // `check` is called several times a second, and may throw to give up. CommError at the deadline names the hosts that
  // have not come, or says why host 0 is not reached; ConfigError as read_run_secret() and secret_to_join().
  static std::unique_ptr<Keepers> meet(const KeeperOptions& options, const Json& mine, const Agree& agree,
                                       const std::function<void()>& check);

  const Json& agreed() const { return agreed_; }
  // The numbers of the hosts that have met, ascending.
  const std::vector<int>& present() const { return present_; }

  // Values that the keepers tell each other. hear() waits for `patience` at most; CommError once a host is lost.
  void tell(const std::string& key, const Json& value);
  std::optional<Json> hear(const std::string& key, std::chrono::milliseconds patience);

  // Why the keepers must meet again: "host 1 (nodeb) is lost: …". Empty: all are connected.
  std::string lost() const;
  // Readable (poll) once a host is lost.
  int lost_fd() const { return lost_fd_.get(); }
  // The name of a host, for messages: "host 1 (nodeb)".
  std::string name_of(int host) const;
  // Ends the connection in good order, once all hosts call it; after a while in any case.
  void leave();

 private:
  Keepers(std::unique_ptr<comm::ControlPlane> plane, const std::vector<Json>& hosts, Json agreed);
  void leave_without_absent();

  const UniqueFd lost_fd_;
  std::vector<std::string> names_;  // empty: that host is absent
  std::vector<int> present_;
  Json agreed_;
  std::unique_ptr<comm::ControlPlane> plane_;  // its thread writes to lost_fd_
};

}  // namespace dtrain::rank
