#include "messages/message_thread.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <memory>
#include <utility>

#include "dtrain/base/limits.h"

namespace dtrain::comm {
namespace {

using std::chrono::microseconds;

constexpr Nanoseconds kNoPause = microseconds(20);          // time without a pause after data has moved
constexpr Nanoseconds kNoPauseHurried = microseconds(200);  // the same while a thread waits
constexpr Nanoseconds kShortest = microseconds(50);
constexpr Nanoseconds kLongest = microseconds(2000);
constexpr Nanoseconds kLongestHurried = microseconds(100);
constexpr std::chrono::seconds kRemoving{1};

}  // namespace

MessageThread::MessageThread(Looks looks) : looks_(looks) {
  // This thread blocks all signals, so only the program's own threads handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = start_thread("the messages", [this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MessageThread::~MessageThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MessageThread::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void MessageThread::wake() {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(woken_, true)) return;
  }
  changed_.notify_all();
}

int MessageThread::add(std::function<Polled()> poll) {
  int id = 0;
  {
    const std::scoped_lock lock(mutex_);
    id = next_id_++;
  }
  post([this, id, poll = std::move(poll)] { pollers_.push_back({id, poll}); });
  return id;
}

void MessageThread::remove(int id) {
  const auto removed = std::make_shared<std::promise<void>>();
  const auto done = removed->get_future();
  post([this, id, removed] {
    std::erase_if(pollers_, [id](const Poller& poller) { return poller.id == id; });
    removed->set_value();
  });
  done.wait_for(kRemoving);
}

Nanoseconds MessageThread::pause_after(Nanoseconds idle) const {
  const bool hurried = hurried_.load(std::memory_order_relaxed) > 0;
  if (idle < (hurried ? kNoPauseHurried : kNoPause)) return Nanoseconds{0};
  // The pause is a quarter of the wait so far, so it makes the wait a quarter longer at most. Every look takes the core
  // from a thread that computes.
  return std::clamp(idle / 4, kShortest, hurried ? kLongestHurried : kLongest);
}

void MessageThread::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // the default adds 50 us to every pause
  const SystemClock clock;
  Nanoseconds moved_at{0};
  bool outstanding = false;
  bool moved = false;
  for (;;) {
    std::vector<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      const auto due = [this] { return stop_ || woken_ || !tasks_.empty(); };
      if (looks_ == Looks::kWhenWoken) {
        if (!moved) changed_.wait(lock, due);
      } else if (!outstanding) {
        changed_.wait(lock, due);
      } else if (const Nanoseconds pause = pause_after(clock.monotonic() - moved_at); pause.count() > 0) {
        changed_.wait_for(lock, pause, due);
      }
      if (stop_ && tasks_.empty()) return;
      tasks.swap(tasks_);
      if (std::exchange(woken_, false) || !tasks.empty()) moved_at = clock.monotonic();
    }
    for (const auto& task : tasks) task();
    Polled all;
    for (const Poller& poller : pollers_) {
      const Polled one = poller.poll();
      all.moved = all.moved || one.moved;
      all.outstanding = all.outstanding || one.outstanding;
    }
    outstanding = all.outstanding;
    moved = all.moved;
    if (moved) {
      moved_at = clock.monotonic();
    } else if (outstanding && looks_ == Looks::kOften) {
      sched_yield();
    }
  }
}

}  // namespace dtrain::comm
