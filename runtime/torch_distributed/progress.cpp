#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace dtrain::torch_distributed {
namespace {

constexpr std::chrono::microseconds kPause{200};
constexpr unsigned kLooksBeforeSleep = 10;  // without anything to do
constexpr unsigned kLooksPerCheck = 64;     // of these one looks whether threads of backward passes are blocked

}  // namespace

Progress& Progress::instance() {
  static Progress* const progress = new Progress;
  return *progress;
}

void Progress::add(const std::shared_ptr<Lane>& lane) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(lanes_, [](const std::weak_ptr<Lane>& one) { return one.expired(); });
  lanes_.push_back(lane);
  if (pid_ == getpid()) return;
  pid_ = getpid();
  if (helper_.joinable()) helper_.detach();  // of the process of which this one is a fork
  asleep_ = false;
  helper_ = std::thread([this] { help(); });
}

void Progress::wake() {
  if (!asleep_.load()) return;
  asleep_ = false;
  asleep_.notify_one();
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
  unsigned idle = 0;
  for (unsigned looks = 1; !stopping_; ++looks) {
    const bool busy = advance_others(nullptr);
    idle = complete_blocked(looks % kLooksPerCheck == 0) || busy ? 0 : idle + 1;
    if (idle > kLooksBeforeSleep) {
      asleep_ = true;
      if (!advance_others(nullptr) && !stopping_) asleep_.wait(true);
      asleep_ = false;
      idle = 0;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void Progress::watch(WorkPtr work) {
  {
    const std::scoped_lock lock(futures_mutex_);
    of_backward_.push_back(std::move(work));
  }
  wake();
}

// True while there are futures that wait for the end of a backward pass.
bool Progress::complete_blocked(bool look) {
  std::vector<WorkPtr> blocked, completed;
  {
    const std::scoped_lock lock(futures_mutex_);
    if (!look) return !of_backward_.empty();
    std::vector<WorkPtr> left;
    for (WorkPtr& work : of_backward_) {
      const bool is_blocked = work->is_over() && work->has_future(true);
      (!work->is_of_backward() ? completed : is_blocked ? blocked : left).push_back(std::move(work));
    }
    of_backward_ = std::move(left);
    if (of_backward_.empty() && blocked.empty()) return false;
  }
  for (WorkPtr& work : blocked) complete_later(std::move(work));
  return true;
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
  if (pid_ != getpid()) return;
  stopping_ = true;
  asleep_ = false;
  asleep_.notify_one();
  if (helper_.joinable()) helper_.join();
}

}  // namespace dtrain::torch_distributed
