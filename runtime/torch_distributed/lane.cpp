#include "lane.h"

#include "dtrain/base/error.h"

namespace dtrain::torch_distributed {

void Lane::submit(const WorkPtr& work, const std::function<void()>& issue) {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  issue();
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
    fail_locked(std::current_exception(), ended);
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

std::exception_ptr Lane::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

std::vector<comm::MissingRank> Lane::missing(const GroupWork& work) const {
  const std::scoped_lock lock(mutex_);
  return error_ ? std::vector<comm::MissingRank>{} : work.missing();
}

}  // namespace dtrain::torch_distributed
