#include "progress.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>

namespace dtrain::torch_distributed {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr microseconds kShortestPause{200};
constexpr microseconds kLongestPause{2000};
constexpr milliseconds kUntilSleep{2};             // without anything to do
constexpr microseconds kMoves{10};                 // a look that takes longer has moved data
constexpr milliseconds kBetweenBlockedChecks{12};  // of the threads of backward passes

std::atomic<Progress*> the_progress{nullptr};

}  // namespace

// A fork has none of these threads, and the lanes are its parent's. It gets an object of its own; the other one stays
// as it is, because another thread may have held its mutexes.
Progress& Progress::instance() {
  static const int of_forks = [] {
    the_progress = new Progress;
    return pthread_atfork(nullptr, nullptr, [] { the_progress = new Progress; });
  }();
  static_cast<void>(of_forks);
  return *the_progress.load(std::memory_order_relaxed);
}

void Progress::add(const std::shared_ptr<Lane>& lane) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(lanes_, [](const std::weak_ptr<Lane>& one) { return one.expired(); });
  lanes_.push_back(lane);
  if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
}

void Progress::wake() {
  stirred_ = true;
  if (!resting_.load()) return;
  { const std::scoped_lock lock(rest_mutex_); }  // the helper sees it, or waits for the notification
  rest_ended_.notify_one();
}

void Progress::advance(Lane& lane, const GroupWork* own) {
  std::vector<WorkPtr> ended;
  lane.advance(ended);
  end(ended, own);
}

bool Progress::advance_others(const Lane* but) {
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& weak : lanes_) {
      if (auto lane = weak.lock(); lane && lane.get() != but && lane->busy()) lanes.push_back(std::move(lane));
    }
  }
  std::vector<WorkPtr> ended;
  for (const auto& lane : lanes) lane->try_advance(ended);
  end(ended);
  return !lanes.empty();
}

void Progress::end(std::vector<WorkPtr>& works, const GroupWork* own) {
  for (WorkPtr& work : works) {
    work->end();
    if (work.get() == own) {
      work->complete_future();
    } else if (work->has_future()) {
      complete_later(std::move(work));
    }
  }
  works.clear();
}

void Progress::help() {
  auto moved_at = steady_clock::now(), checked_at = moved_at;
  while (!stopping_) {
    const bool stirred = stirred_.exchange(false);
    const auto began = steady_clock::now();
    bool busy = advance_others(nullptr);
    const auto now = steady_clock::now();
    if (stirred || now - began > kMoves) moved_at = now;
    const bool check = now - checked_at > kBetweenBlockedChecks;
    if (check) checked_at = now;
    busy = complete_blocked(check) || busy;
    const auto idle = now - moved_at;
    // Each look takes the core from a thread that computes. The pause is a quarter of the time in which nothing has
    // moved, so it makes that a quarter longer at most.
    const auto pause = std::clamp<steady_clock::duration>(idle / 4, kShortestPause, kLongestPause);
    if (!busy && idle > kUntilSleep) {
      rest(std::nullopt);
    } else if (busy && pause > kShortestPause) {
      rest(pause);
    } else {
      std::this_thread::sleep_for(kShortestPause);
    }
  }
}

// Until wake(), or for a pause.
void Progress::rest(std::optional<std::chrono::nanoseconds> pause) {
  std::unique_lock lock(rest_mutex_);
  resting_ = true;  // comes before the look at `stirred_`
  const auto over = [this] { return stirred_.load() || stopping_.load(); };
  if (pause) {
    rest_ended_.wait_for(lock, *pause, over);
  } else {
    rest_ended_.wait(lock, over);
  }
  resting_ = false;
}

void Progress::watch(WorkPtr work) {
  {
    const std::scoped_lock lock(futures_mutex_);
    of_backward_.push_back(std::move(work));
  }
  wake();
}

// True while there are futures that wait for the end of a backward pass. Works have mutexes of their own, with which
// they call watch(): none of them is taken within ours.
bool Progress::complete_blocked(bool look) {
  std::vector<WorkPtr> watched, left;
  {
    const std::scoped_lock lock(futures_mutex_);
    if (!look) return !of_backward_.empty();
    watched.swap(of_backward_);
  }
  for (WorkPtr& work : watched) {
    if (!work->is_of_backward()) continue;
    if (work->is_over() && work->has_future(true)) {
      complete_later(std::move(work));
    } else {
      left.push_back(std::move(work));
    }
  }
  const std::scoped_lock lock(futures_mutex_);
  std::move(left.begin(), left.end(), std::back_inserter(of_backward_));
  return !of_backward_.empty();
}

void Progress::complete_later(WorkPtr work) {
  const std::scoped_lock lock(futures_mutex_);
  futures_.push_back(std::move(work));
  if (futures_.size() <= idle_completers_) {
    futures_changed_.notify_one();
  } else {
    std::thread([this] { complete(); }).detach();
  }
}

void Progress::complete() {
  std::unique_lock lock(futures_mutex_);
  for (;;) {
    ++idle_completers_;
    futures_changed_.wait(lock, [this] { return !futures_.empty(); });
    --idle_completers_;
    WorkPtr work = std::move(futures_.front());
    futures_.pop_front();
    lock.unlock();
    work->complete_future();
    work.reset();
    lock.lock();
  }
}

void Progress::stop() {
  stopping_ = true;
  wake();
  if (helper_.joinable()) helper_.join();
}

}  // namespace dtrain::torch_distributed
