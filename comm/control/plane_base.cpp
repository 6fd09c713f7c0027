#include "control/plane_base.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::comm {
namespace {

ControlOptions checked(ControlOptions options) {
  check_secret(options.secret);
  const World& world = options.world;
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size) {
    throw CommError("rank " + std::to_string(world.rank) + " of a world of " + std::to_string(world.size) +
                    " does not exist");
  }
  if (!options.log) options.log = make_null_logger();
  return options;
}

}  // namespace

std::string process_text(int rank, std::int64_t pid, const std::string& host) {
  std::string text = "rank " + std::to_string(rank);
  if (pid == 0) return text;
  return text + " (pid " + std::to_string(pid) + (host.empty() ? "" : " on " + host) + ")";
}

PlaneBase::PlaneBase(ControlOptions options)
    : options_(checked(std::move(options))), io_(1), guard_(asio::make_work_guard(io_)) {}

PlaneBase::~PlaneBase() {
  stop_thread();
}

void PlaneBase::start_thread() {
  // The control thread blocks all signals, so only the program's own threads handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = dtrain::start_thread("the control plane", [this] {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        options_.log->error("control: {}", error.what());
      }
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PlaneBase::stop_thread() {
  if (!thread_.joinable()) return;
  guard_.reset();
  io_.stop();
  thread_.join();
}

std::string PlaneBase::derive_key(const std::string& purpose) const {
  return hmac_sha256(options_.secret, to_line(Json::array({"dtrain-key", purpose})));
}

std::optional<RankFailure> PlaneBase::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

std::string PlaneBase::get(const std::string& key) {
  std::optional<std::string> value = get_within(key, options_.timeout);
  if (!value) {
    throw TimedOut("control: no rank set key '" + key + "' within " + seconds_of_timeout() +
                   "; ranks that do not wait for it: " + not_waiting_for(key));
  }
  return *std::move(value);
}

void PlaneBase::on_failure(std::function<void(const RankFailure&)> callback) {
  Lock lock(mutex_);
  if (!failure_) {
    callbacks_.push_back(std::move(callback));
    return;
  }
  const RankFailure known = *failure_;
  lock.unlock();
  callback(known);
}

std::optional<ClockOffset> PlaneBase::take_clock() {
  if (!has_clock_.load(std::memory_order_relaxed)) return std::nullopt;
  const Lock lock(mutex_);
  has_clock_ = false;
  return std::exchange(clock_, std::nullopt);
}

bool PlaneBase::publish(const RankFailure& failure, const std::function<void()>& report) {
  std::vector<std::function<void(const RankFailure&)>> callbacks;
  {
    const Lock lock(mutex_);
    if (failure_ || all_finished_) return false;
    failure_ = failure;
    callbacks.swap(callbacks_);
  }
  changed_.notify_all();
  if (report) report();  // first: a callback may end the process
  for (const auto& callback : callbacks) callback(failure);
  return true;
}

void PlaneBase::throw_if_failed(const Lock&) const {
  if (failure_) throw CommError(failure_text(*failure_));
}

bool PlaneBase::wait(Lock& lock, SteadyClock::time_point deadline, const std::function<bool()>& ready, ShownWait& shown,
                     const std::string& what) {
  const auto over = [&] { return ready() || failure_ || closed_; };
  const auto first = shown.has_lasted() ? deadline : SteadyClock::now() + ShownWait::kShownAfter;
  if (!changed_.wait_until(lock, std::min(deadline, first), over)) {
    shown.lasts(ShownWait::kShownAfter, [&] { return ShownOperation{.text = what}; });
    changed_.wait_until(lock, deadline, over);
  }
  if (ready()) return true;
  throw_if_failed(lock);
  if (closed_) throw CommError("control: every rank has finished, and the connection to rank 0 is closed");
  return false;
}

std::string PlaneBase::seconds_of_timeout() const {
  return format_duration(options_.timeout);
}

std::string_view name_of(PeerState state) {
  static constexpr std::string_view kNames[] = {"never connected", "late: its heartbeats come",
                                                "stopped: no heartbeats", "dead: connection lost", "finished"};
  const auto number = static_cast<std::size_t>(state);  // from rank 0's message
  return number < std::size(kNames) ? kNames[number] : "unknown state";
}

std::string failure_text(const RankFailure& failure) {
  if (failure.rank < 0) return failure.cause;
  const std::string who = "rank " + std::to_string(failure.rank) + " failed";
  if (failure.step < 0) return who + ": " + failure.cause;
  return who + " at step " + std::to_string(failure.step) + ": " + failure.cause;
}

}  // namespace dtrain::comm
