#include "lane.h"

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::torch_distributed {

void Lane::submit(const WorkPtr& work, const std::function<void()>& issue) {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  try {
    issue();
  } catch (const CommError&) {
    std::rethrow_exception(explained(std::current_exception()));
  }
  works_.push_back(work);
  busy_ = true;
}

void Lane::advance(std::vector<WorkPtr>& ended) {
  const std::scoped_lock lock(mutex_);
  advance_locked(ended);
}

void Lane::try_advance(std::vector<WorkPtr>& ended) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) advance_locked(ended);
}

void Lane::advance_locked(std::vector<WorkPtr>& ended) {
  if (error_ || !busy_.load(std::memory_order_relaxed)) return;
  try {
    collect(ended);
    busy_ = !works_.empty() || owes();
  } catch (...) {
    fail_locked(explained(std::current_exception()), ended);
  }
}

void Lane::fail(const std::exception_ptr& error, std::vector<WorkPtr>& ended) {
  const std::scoped_lock lock(mutex_);
  fail_locked(error, ended);
}

void Lane::fail_locked(const std::exception_ptr& error, std::vector<WorkPtr>& ended) {
  if (!error_) error_ = error;
  for (WorkPtr& work : works_) {
    work->set_error(error_);
    ended.push_back(std::move(work));
  }
  works_.clear();
  busy_ = false;
}

void Lane::close(const std::string& cause, std::vector<WorkPtr>& ended) {
  std::shared_ptr<void> carrier;
  const std::scoped_lock lock(mutex_);
  fail_locked(std::make_exception_ptr(CommError(cause)), ended);
  carrier = release();
}

std::exception_ptr Lane::explained(const std::exception_ptr& error) const {
  std::vector<int> concerned;
  if (const auto failure = plane().failure(); failure && failure->rank >= 0) {
    concerned.push_back(failure->rank);
  } else {
    for (int rank = 0; rank < size_of_lane(); ++rank) concerned.push_back(in_world(rank));
  }
  try {
    std::rethrow_exception(error);
  } catch (const comm::TimedOut& timed_out) {
    return std::make_exception_ptr(comm::TimedOut(explained(timed_out.what(), concerned)));
  } catch (const CommError& failed) {
    return std::make_exception_ptr(CommError(explained(failed.what(), concerned)));
  } catch (...) {
    return error;
  }
}

std::string Lane::explained(const std::string& text, const std::vector<int>& ranks) const {
  std::string whole = text;
  if (text.find("last collective of rank") == std::string::npos) {  // else the rank that failed first has said it
    if (const std::string last = flight_->last_of(ranks); !last.empty()) whole += "; " + last;
  }
  const std::string files = flight_->write_after_failure();
  return files.empty() || text.find(files) != std::string::npos ? whole : whole + "; " + files;
}

std::exception_ptr Lane::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

std::vector<comm::MissingRank> Lane::missing(const GroupWork& work) const {
  const std::scoped_lock lock(mutex_);
  // One that has left the lane is being ended, by the thread that has taken it, without the mutex.
  const bool is_here =
      std::any_of(works_.begin(), works_.end(), [&](const WorkPtr& one) { return one.get() == &work; });
  return is_here ? work.missing() : std::vector<comm::MissingRank>{};
}

}  // namespace dtrain::torch_distributed
