#include "messages/message_thread.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <future>

#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::comm {
namespace {

using std::chrono::microseconds;

constexpr Nanoseconds kNoPause = microseconds(20);          // time without a pause after data has moved
constexpr Nanoseconds kNoPauseHurried = microseconds(200);  // the same while a thread waits
constexpr Nanoseconds kShortest = microseconds(50);
constexpr Nanoseconds kLongest = microseconds(2000);
constexpr Nanoseconds kLongestHurried = microseconds(100);
constexpr std::chrono::seconds kRemoving{1};
// Time in which a thread that waits only looks, after data has moved: longer than a small message takes over a link of
// 1 Gbit/s, there and back. To sleep and be woken takes several times as long as the message.
constexpr Nanoseconds kSpin = microseconds(100);
constexpr int kFirstLooks = 4;

}  // namespace

MessageThread::MessageThread(std::unique_ptr<MessageWaiter> waiter) : waiter_(std::move(waiter)) {
  const BlockedSignals blocked;  // in this thread, so that only the program's own threads handle them
  thread_ = start_thread("the messages", [this] { waiter_ ? run_waiting() : run(); });
}

MessageThread::~MessageThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void MessageThread::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake();
}

void MessageThread::wake() {
  if (waiter_) return waiter_->wake();
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
  if (waiter_) return done.wait();  // a transport with a waiter always returns
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
  for (;;) {
    std::vector<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      const auto due = [this] { return stop_ || woken_ || !tasks_.empty(); };
      if (!outstanding) {
        changed_.wait(lock, due);
      } else if (const Nanoseconds pause = pause_after(clock.monotonic() - moved_at); pause.count() > 0) {
        changed_.wait_for(lock, pause, due);
      }
      if (stop_ && tasks_.empty()) return;
      tasks.swap(tasks_);
      if (std::exchange(woken_, false) || !tasks.empty()) moved_at = clock.monotonic();
    }
    const Polled all = run_tasks_and_poll(tasks);
    outstanding = all.outstanding;
    if (all.moved) {
      moved_at = clock.monotonic();
    } else if (outstanding) {
      sched_yield();
    }
  }
}

Polled MessageThread::run_tasks_and_poll(const std::vector<std::function<void()>>& tasks) {
  for (const auto& task : tasks) task();
  Polled all;
  for (const Poller& poller : pollers_) {
    const Polled polled = poller.poll();
    all.moved = all.moved || polled.moved;
    all.outstanding = all.outstanding || polled.outstanding;
  }
  return all;
}

// Called with working_ held; true if anything moved.
bool MessageThread::look(Nanoseconds timeout) {
  waiter_->wait(timeout);
  std::vector<std::function<void()>> tasks;
  {
    const std::scoped_lock lock(mutex_);
    tasks.swap(tasks_);
  }
  return run_tasks_and_poll(tasks).moved;
}

void MessageThread::run_waiting() {
  for (bool moved = false;;) {
    if (!moved) waiter_->sleep();
    const std::scoped_lock working(working_);
    {
      const std::scoped_lock lock(mutex_);
      if (stop_ && tasks_.empty()) return;
    }
    moved = look(Nanoseconds{0});
  }
}

// The messages that can leave at once leave without waking the thread: most callers wait next, and do the rest.
void MessageThread::begin() {
  std::unique_lock working(working_, std::defer_lock);
  if (!waiter_ || !working.try_lock()) return wake();
  int looks = 0;
  while (look(Nanoseconds{0})) {
    if (++looks == kFirstLooks) return wake();
  }
}

bool MessageThread::work_until(const std::function<bool()>& over, Nanoseconds until) {
  if (!waiter_ || helped_.exchange(true)) return false;
  {
    const std::scoped_lock working(working_);
    waiter_->hold(true);
    const SystemClock clock;
    Nanoseconds moved_at = clock.monotonic();
    bool moved = true;
    for (Nanoseconds now = moved_at; !over() && now < until; now = clock.monotonic()) {
      const bool spin = moved || now - moved_at < kSpin;
      moved = look(spin ? Nanoseconds{0} : until - now);
      if (moved) moved_at = now;
    }
    waiter_->hold(false);
    if (moved) waiter_->wake();  // there may be more to do
  }
  helped_ = false;
  return true;
}

}  // namespace dtrain::comm
