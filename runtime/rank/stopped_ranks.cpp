#include "stopped_ranks.h"

#include <csignal>
#include <filesystem>

#include <unistd.h>

#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "dtrain/host/processes.h"

namespace dtrain::rank {
namespace {

constexpr std::chrono::milliseconds kPeriod{500};
constexpr std::chrono::seconds kUnwatched{3};  // between two looks: this process itself was stopped

// The processes with the same text here see each other under the same numbers.
std::string process_space(const comm::World& world) {
  std::error_code code;
  return world.host + " " + std::filesystem::read_symlink("/proc/self/ns/pid", code).string();
}

}  // namespace

StoppedRanks::StoppedRanks(comm::ControlPlane& control, const std::string& host_name,
                           std::chrono::milliseconds patience, Logger log)
    : control_(control), patience_(patience), log_(std::move(log)) {
  const comm::World& world = control.world();
  const std::string space = process_space(world);
  const auto all =
      control.gather("run.processes", to_line({{"pid", ::getpid()}, {"host", host_name}, {"space", space}}));
  for (int rank = 0; rank < world.size; ++rank) {
    const bool is_watched = world.rank == 0 ? rank != 0 : rank == 0;
    if (!is_watched) continue;
    const Json process = Json::parse(all[static_cast<std::size_t>(rank)]);
    peers_.push_back({.rank = rank,
                      .pid = process.at("pid").get<std::int64_t>(),
                      .host_name = process.at("host").get<std::string>(),
                      .is_here = process.at("space") == space,
                      .silent_since = {}});
  }
  thread_ = start_thread("the watch for stopped ranks", [this] { watch(); });
}

StoppedRanks::~StoppedRanks() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StoppedRanks::watch() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kPeriod, [this] { return ends_; })) return;
    }
    if (control_.failure()) return;
    look();
  }
}

void StoppedRanks::look() {
  const auto now = SteadyClock::now();
  const bool was_away = last_look_ && now - *last_look_ > kUnwatched;
  last_look_ = now;
  for (Peer& peer : peers_) {
    // A process of this host that runs is late for another reason, and one in a debugger is stopped on purpose.
    const bool is_silent =
        control_.peer_state(peer.rank) == comm::PeerState::kLate &&
        (!peer.is_here || host::read_process_state(static_cast<pid_t>(peer.pid)).is_stopped_by_signal());
    if (!is_silent) {
      peer.silent_since.reset();
    } else if (was_away || !peer.silent_since) {
      peer.silent_since = now;
    } else if (now - *peer.silent_since >= patience_) {
      return end(peer, now - *peer.silent_since);
    }
  }
}

void StoppedRanks::end(const Peer& peer, std::chrono::nanoseconds silent) {
  const std::string cause = "rank " + std::to_string(peer.rank) + " (pid " + std::to_string(peer.pid) + " on " +
                            peer.host_name + ") is stopped (SIGSTOP): it has sent nothing for " +
                            format_duration(silent) + ", though its host answers";
  log_->error("{}", cause);  // nobody else says it
  control_.fail({.rank = peer.rank, .step = -1, .cause = cause, .departure = comm::Departure::kTimedOut});
  if (peer.is_here) ::kill(static_cast<pid_t>(peer.pid), SIGKILL);
}

}  // namespace dtrain::rank
