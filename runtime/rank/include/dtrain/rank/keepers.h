// The keepers of a run's hosts: on each host the process that has started its ranks and starts them again. No launcher
// stands above them. They meet at MASTER_ADDR, where host 0's keeper serves a store until all have come, and are then
// connected by a control plane of their own. Where host 0 is lost, another host serves the store at its own address,
// which the others know from the meeting before. One thread.
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
  std::size_t before = 0;                      // hosts that have just parted, and that are not lost; 0: they have not
  std::chrono::milliseconds moment{1'000};     // how long these wait for others once all of them are there
  // The address of each host at the last meeting; empty: the host was absent, or there was no meeting.
  std::vector<std::string> addresses = {};
  std::vector<int> silent = {};  // hosts that do not answer, which nobody looks for at first
  // After this time this host serves the meeting at its own address, where host 0 is not reached; empty: never.
  std::optional<std::chrono::milliseconds> serves_after = {};
  // Where several parts of the hosts may go on by themselves: asked on the host that serves, with what was agreed and
  // the hosts that are there. False: another part has gone on, which this one is to join.
  std::function<bool(const Json& agreed, const std::vector<int>& present)> claims = {};
  // Why fewer than all hosts must not begin now; empty: they may.
  std::function<std::string()> holds_back = {};
  Logger log;

  std::string job_key() const { return "dtrain/" + node.job() + "/keepers"; }
};

struct MeetingPlace;

// The next meeting, opened while the ranks train: hosts that come meanwhile wait in it.
class WaitingRoom {
 public:
  // Opens it on this host. CommError: it cannot listen there.
  explicit WaitingRoom(const KeeperOptions& options);
  ~WaitingRoom();
  WaitingRoom(const WaitingRoom&) = delete;
  WaitingRoom& operator=(const WaitingRoom&) = delete;

  // Returns the hosts that wait. Empty: one of them is lost, and the room is of no use any more.
  std::optional<std::vector<int>> waiting();
  // True once host 0, which has been absent, serves a meeting at MASTER_ADDR.
  bool host_0_is_back() const;

  // The meeting is held there now.
  std::unique_ptr<MeetingPlace> take_place();

 private:
  class Lookout;
  std::unique_ptr<MeetingPlace> place_;
  std::unique_ptr<Lookout> lookout_;  // null: host 0 is not absent
};

class Keepers {
 public:
  // Makes what all hosts get from what each host that is present has given, in their order.
  using Agree = std::function<Json(const std::vector<Json>& all)>;

  // Waits until the keepers of all hosts are connected, and again if one is lost meanwhile; for NodeEnvironment::least
  // hosts `last_call` is long enough. The host that serves the meeting, host 0 as a rule, calls `agree`.
  // `check` is called several times a second, and may throw to give up. `room`: an open one, where all meet. CommError
  // at the deadline names the hosts that have not come, or says why host 0 is not reached; ConfigError as
  // read_run_secret() and secret_to_join().
  static std::unique_ptr<Keepers> meet(const KeeperOptions& options, const Json& mine, const Agree& agree,
                                       const std::function<void()>& check, std::unique_ptr<WaitingRoom> room = nullptr);

  const Json& agreed() const { return agreed_; }
  // The numbers of the hosts that have met, ascending.
  const std::vector<int>& present() const { return present_; }
  // By host; empty: it is absent.
  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::vector<std::string>& names() const { return names_; }

  // Values that the keepers tell each other. hear() waits for `patience` at most; CommError once a host is lost.
  void tell(const std::string& key, const Json& value);
  std::optional<Json> hear(const std::string& key, std::chrono::milliseconds patience);

  // Why the keepers must meet again: "host 1 (nodeb) is lost: …". Empty: all are connected.
  std::string lost() const;
  struct LostHost {
    int host = -1;        // -1: not known
    bool silent = false;  // it does not answer; else its keeper has ended
  };
  std::optional<LostHost> lost_host() const;
  // Readable (poll) once a host is lost.
  int lost_fd() const { return lost_fd_.get(); }
  // The name of a host, for messages: "host 1 (nodeb)".
  std::string name_of(int host) const;
  // Ends the connection in good order, once all hosts call it; after a while in any case.
  void leave();

 private:
  Keepers(std::unique_ptr<comm::ControlPlane> plane, int server, const std::vector<Json>& hosts, Json agreed);
  void leave_without_absent();

  const UniqueFd lost_fd_;
  const int server_;                // the host whose control plane it is
  std::vector<std::string> names_;  // empty: that host is absent
  std::vector<std::string> addresses_;
  std::vector<int> present_;
  Json agreed_;
  std::unique_ptr<comm::ControlPlane> plane_;  // its thread writes to lost_fd_
};

}  // namespace dtrain::rank
