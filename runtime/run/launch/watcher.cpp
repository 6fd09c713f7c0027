#include "launch/watcher.h"

#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

namespace dtrain::run {
namespace {

constexpr int kWatchPollMs = 50;  // the screen is updated at least this often
constexpr auto kTogether = std::chrono::seconds(1);

class Watcher {
 public:
  Watcher(const Attempt& attempt, WatchedRanks& ranks) : attempt_(attempt), ranks_(ranks) {}

  void run() {
    while (!ranks_.all_ended()) {
      wait();
      take_interrupts();
      look(false);
      ranks_.end_what_hangs();
    }
    look(true);
    attempt_.screen.end_progress();
  }

 private:
  void wait() {
    std::vector<pollfd> descriptors{{attempt_.signals.fd(), POLLIN, 0}};
    ranks_.add_descriptors(descriptors);
    ::poll(descriptors.data(), descriptors.size(), kWatchPollMs);
  }

  void take_interrupts() {
    while (const auto signal = attempt_.signals.next()) interrupt(signal_name(*signal), *signal);
    for (const int kills = attempt_.task.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill", SIGINT);
    if (interrupts_ == 0 && !yields_ && !attempt_.task.yields().empty()) yield(attempt_.task.yields());
  }

  // A SIGTERM is often sent twice at once: to the whole process group, and again by a parent that passes it on.
  bool belongs_to_the_last(int signal) {
    const Nanoseconds now = attempt_.clock.monotonic();
    const bool belongs = signal == SIGTERM && terminated_ && now - *terminated_ < kTogether;
    if (signal == SIGTERM && !belongs) terminated_ = now;
    return belongs;
  }

  void interrupt(const std::string& why, int signal) {
    if (belongs_to_the_last(signal)) return;
    ++interrupts_;
    attempt_.events.write("interrupted", {{"signal", why}});
    if (interrupts_ == 1) attempt_.task.enter(scheduler::TaskState::kStopping, why);
    ranks_.interrupt({.why = why, .signal = signal, .count = interrupts_, .repeats = yields_ && interrupts_ == 1});
  }

  void yield(const std::string& why) {
    yields_ = true;
    attempt_.events.write("yields", {{"reason", why}});
    attempt_.task.enter(scheduler::TaskState::kStopping, why);
    ranks_.interrupt({.why = why, .signal = SIGTERM, .yields = true});
  }

  void look(bool last) {
    ranks_.take(last);
    const bool goes_on = interrupts_ == 0 && !yields_ && !ranks_.has_failed();
    if (goes_on && ranks_.all_joined() && !std::exchange(running_, true)) {
      attempt_.task.enter(scheduler::TaskState::kRunning);
    }
    ranks_.judge();
  }

  const Attempt& attempt_;
  WatchedRanks& ranks_;
  int interrupts_ = 0;
  int kills_ = 0;        // how many of the interrupts came from `dtrain task kill`
  bool yields_ = false;  // it was told to save and to give up its slots
  bool running_ = false;
  std::optional<Nanoseconds> terminated_;  // when the last SIGTERM came
};

}  // namespace

void watch_ranks(const Attempt& attempt, WatchedRanks& ranks) {
  Watcher(attempt, ranks).run();
}

}  // namespace dtrain::run
