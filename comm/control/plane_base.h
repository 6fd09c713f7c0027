// The common part of both sides of the control plane: the failure of the run, its callbacks, waiting with a deadline,
// and the control thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include "control/protocol.h"
#include "dtrain/base/pulse.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

using SteadyClock = std::chrono::steady_clock;

// A peer counts as stopped after this many periods without a heartbeat.
inline constexpr int kMissedHeartbeats = 3;

// Returns "rank 2 (pid 4711 on nodeb)"; leaves out an empty host or a pid of 0.
std::string process_text(int rank, std::int64_t pid, const std::string& host);

class PlaneBase : public ControlPlane {
 public:
  explicit PlaneBase(ControlOptions options);
  ~PlaneBase() override;

  const World& world() const override { return options_.world; }
  std::uint32_t generation() const override { return options_.generation; }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  std::string derive_key(const std::string& purpose) const override;
  std::optional<RankFailure> failure() const override;
  void on_failure(std::function<void(const RankFailure&)> callback) override;
  void set_step(std::int64_t step) override { step_.store(step, std::memory_order_relaxed); }
  std::string get(const std::string& key) override;
  void barrier(const std::string& name) override { gather(name, {}); }
  std::optional<ClockOffset> take_clock() override;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  void start_thread();
  // Ends the control thread; the derived destructor calls it before its own members go.
  void stop_thread();
  bool has_thread() const { return thread_.joinable(); }
  bool on_control_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Keeps the first failure, reports it to the other ranks with `report`, then calls the callbacks, all on the calling
  // thread.
  // False: there was a failure before, or all is finished.
  bool publish(const RankFailure& failure, const std::function<void()>& report = {});
  void throw_if_failed(const Lock& held) const;  // CommError with the failure's text
  // Waits until `ready`; false at the deadline; CommError when the run fails or the connection closes meanwhile.
  // `what` is shown as long as `shown` lives.
  bool wait(Lock& lock, SteadyClock::time_point deadline, const std::function<bool()>& ready, ShownWait& shown,
            const std::string& what);
  bool wait(Lock& lock, SteadyClock::time_point deadline, const std::function<bool()>& ready, const std::string& what) {
    ShownWait shown;
    return wait(lock, deadline, ready, shown, what);
  }
  std::string seconds_of_timeout() const;
  // Names the ranks that do not wait for the key: one of them should set it. After a time-out.
  virtual std::string not_waiting_for(const std::string& key) = 0;

  const ControlOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<RankFailure> failure_;  // guarded by mutex_, as are the next three
  bool all_finished_ = false;
  bool closed_ = false;  // no more messages will come, so every wait ends
  std::vector<std::function<void(const RankFailure&)>> callbacks_;
  std::atomic<std::int64_t> step_{-1};
  std::optional<ClockOffset> clock_;    // guarded by mutex_: the last one not yet taken …
  std::atomic<bool> has_clock_{false};  // … and true if there is one
  asio::io_context io_;

 private:
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::thread thread_;
};

}  // namespace dtrain::comm
