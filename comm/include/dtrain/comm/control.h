// The control plane: each rank has one TCP connection to rank 0, which is the server. It carries rendezvous, a
// key-value store, agreement, heartbeats and failures, but never bulk data.
//
// Connections are authenticated by the per-run secret (dtrain/comm/handshake.h; the secret itself never travels). After
// that, each message carries a number and a MAC, and the size of messages is limited. A malformed message, or one that
// somebody on the way has forged, repeated, moved or left out, is logged and ends its connection, and has no other
// effect. All public calls are thread safe. The failure callback runs on the control thread, or within fail() or
// on_failure().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"

namespace dtrain::comm {

// A rank's place among its peers. Plain values, filled in by runtime/rank/environment.cpp.
struct World {
  int rank = 0;        // 0 .. size-1
  int size = 1;        // the world size
  int local_rank = 0;  // 0 .. local_size-1, among the ranks of the same host
  int local_size = 1;
  std::string host;  // the agent id given by the launcher, else the host's identity (dtrain/host/network.h)
};

// A wait has reached its deadline. Unlike other errors of communication, this one has no known cause: no message
// arrived.
class TimedOut : public CommError {
 public:
  using CommError::CommError;
  explicit TimedOut(const CommError& error) : CommError(error.what(), error.remedy()) {}
};

// How TCP connections between processes of a run are secured (communication.security). With both, each end proves that
// it knows the run's secret, and each message of the control plane is proven to come from it. Only TLS also protects
// the data, and hides what is sent.
enum class Security { kProof, kTls };

struct ControlEndpoint {
  std::string address = "127.0.0.1";  // rank 0 listens on it, the others connect to it
  std::uint16_t port = 0;             // 0 on rank 0: any free one
};

struct ControlOptions {
  World world;
  std::uint32_t generation = 0;
  std::string secret;                          // at least 16 bytes
  Security security = Security::kProof;        // the same on all ranks
  std::chrono::milliseconds timeout{600'000};  // deadline of every wait, the connection included
  std::chrono::milliseconds heartbeat{1'000};
  // The connection counts as lost after this time without any packet from the other side's host, acknowledgements
  // included. A stopped process (SIGSTOP) does not lose its connection, because its host still acknowledges packets.
  std::chrono::milliseconds host_silence{5'000};
  std::chrono::milliseconds clock_period{60'000};  // after measure_clock(): time between two comparisons of the clocks
  std::string host_name;                           // of this process, for error messages; empty: they name no host
  std::string session = "dtrain";                  // both sides must name the same run
  Logger log;
};

// The way in which a rank left: it (or another rank) reported an error, its connection ended without notice, its host
// no longer answers, or it reported that a wait reached its deadline (TimedOut).
enum class Departure { kReported, kGone, kSilent, kTimedOut };
// True if a rank has reported the reason.
inline bool is_reported(Departure departure) {
  return departure == Departure::kReported || departure == Departure::kTimedOut;
}

// The cause for which a rank (or all ranks) must stop. `rank` is -1 if it is no rank but, for example, the launcher.
struct RankFailure {
  int rank = -1;
  std::int64_t step = -1;  // the batch it was in, -1 if not in one
  std::string cause;
  Departure departure = Departure::kReported;
};

// The offset to rank 0's monotonic clock: a time t on this rank is t + offset on rank 0, to within `error`.
struct ClockOffset {
  std::chrono::nanoseconds time{0};  // time of the measurement, on this rank's clock
  std::chrono::nanoseconds offset{0}, error{0};
  int round_trips = 0;  // number of round trips; the shortest one counts
};

enum class PeerState { kConnecting, kAlive, kLate, kGone, kFinished };

// Returns "late: its heartbeats come", "stopped: no heartbeats", "dead: connection lost", …
std::string_view name_of(PeerState state);
// Returns "rank 2 failed at step 17: …", the error of every rank that stops because of this failure.
std::string failure_text(const RankFailure& failure);

class ControlPlane {
 public:
  // Rank 0: listens (before anyone connects). `bound` receives the address and port. A world of one neither listens nor
  // starts a thread; `bound` then keeps port 0.
  static std::unique_ptr<ControlPlane> serve(const ControlOptions& options, const ControlEndpoint& listen_on,
                                             ControlEndpoint* bound);
  // Another rank: connects, retrying until the deadline. CommError names the address and the cause (refused, wrong
  // secret, other run, other generation, rank taken).
  static std::unique_ptr<ControlPlane> connect(const ControlOptions& options, const ControlEndpoint& server);
  virtual ~ControlPlane() = default;

  virtual const World& world() const = 0;
  virtual std::uint32_t generation() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;  // the deadline of every wait
  // Returns a key of 32 bytes for this purpose alone, the same on all ranks, which says nothing about the run's secret.
  virtual std::string derive_key(const std::string& purpose) const = 0;

  // Key-value store of this generation. get() blocks until the key is set; at the deadline a CommError names the key.
  // get(), gather() and barrier() also throw it if a rank fails.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;
  // Like get(), with a deadline of its own. Empty: the key is not set by then.
  virtual std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds deadline) = 0;

  // Every rank gives a value and gets all of them, in rank order. `name` must be unique among outstanding calls and
  // the same on every rank. At the deadline: a CommError naming the ranks that are missing and their state.
  virtual std::vector<std::string> gather(const std::string& name, const std::string& value) = 0;
  // gather() without values: returns once all ranks have called it.
  virtual void barrier(const std::string& name) = 0;

  // Publishes that this rank cannot go on. The first failure of a run is the cause that every other rank reports.
  // Returns once the others have received it (a second at most): the caller may end its process then.
  virtual void fail(const RankFailure& failure) = 0;
  // Returns the failure of this run, if there is one.
  virtual std::optional<RankFailure> failure() const = 0;
  // `callback` is called once, when a failure of any rank (or a lost connection) becomes known: on the control thread,
  // or on the thread that calls fail(). If a failure is known already, it is called at once, on this thread.
  virtual void on_failure(std::function<void(const RankFailure&)> callback) = 0;
  // Sets the batch that heartbeats report to rank 0, for errors.
  virtual void set_step(std::int64_t step) = 0;
  // Compares this rank's clock with rank 0's, now. Empty: rank 0 did not answer in time. From the first call on, the
  // control thread repeats the comparison every clock_period. Rank 0's own offset is 0.
  virtual std::optional<ClockOffset> measure_clock(std::chrono::milliseconds deadline) = 0;
  // Returns the latest repeated comparison; empty: none is newer than the last call. Cheap enough for every step.
  virtual std::optional<ClockOffset> take_clock() = 0;
  virtual PeerState peer_state(int rank) const = 0;  // on a rank other than 0: as rank 0 last reported it

  // Announces that this rank has finished. A connection that is lost after that is no failure. Blocks until every rank
  // has announced its end, or until the deadline.
  virtual void finish() = 0;
  // Announces the same without waiting for the others. Rank 0, which serves them, calls finish() before it goes.
  virtual void leave() = 0;
};

// Returns a control plane for some ranks of another one, which outlives it: this rank among them, numbered in this
// order. Collective over them. All have the same `name`, which no other group of this generation has. Its values stay
// in the parent's store, so it is for making things, not for every step. Failures name ranks of the parent.
std::unique_ptr<ControlPlane> make_subgroup(ControlPlane& parent, const std::string& name, std::vector<int> members);

}  // namespace dtrain::comm
