// The waits of a communicator of messages, and the errors that end them.
#include <algorithm>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "messages/message_core.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::microseconds kTick{50};
// Times between two calls of while_waiting(): while operations elsewhere are outstanding, and while none is.
constexpr std::chrono::microseconds kBetweenDrives{200};
constexpr std::chrono::milliseconds kLongestBetweenDrives{5};

}  // namespace

void MessageCore::wait_for(MessageWork& work) {
  if (!work.submitted_) throw CommError(describe(work.operation_.descriptor()) + " belongs to a group that is open");
  const Nanoseconds began = now();
  const Nanoseconds deadline = began + setup_.options.timeout;
  bool warned = false;
  bool timed_out = false;
  ShownWait shown_wait;
  MessageThread& thread = setup_.shared->thread;
  const Descriptor& descriptor = work.operation_.descriptor();
  const auto over = [&] { return work.complete_ || failed_; };
  while (!over()) {
    const Nanoseconds time = now();
    shown_wait.lasts(time - began, [&] { return shown(descriptor, descriptor.sequence, world_size()); });
    const Nanoseconds next = warned ? deadline : std::min(deadline, began + Nanoseconds(setup_.options.warn_after));
    const Nanoseconds look = time - began < ShownWait::kShownAfter ? began + ShownWait::kShownAfter : next;
    const Nanoseconds until = std::min({next, look, time + drive_others()});
    const std::string me = "rank " + rank_name(rank()) + ": ";
    if (time < next) {
      if (!thread.work_until(over, until)) sleep_until(over, until);
    } else if (time >= deadline) {
      timed_out = true;
      fail(me + describe_waiting(work, setup_.options.timeout, "timed out after") + describe_hindrance(work), true);
    } else {
      warned = true;
      setup_.options.log->warn("{}",
                               me + describe_waiting(work, time - began, "has waited for") + describe_hindrance(work));
    }
  }
  work.timing_.exposed += now() - began;
  if (work.complete_) return;
  try {
    throw_failure(&work, began);
  } catch (const CommError& error) {
    if (timed_out) throw TimedOut(error);
    throw;
  }
}

Nanoseconds MessageCore::drive_others() const {
  if (!setup_.options.while_waiting) return setup_.options.timeout;
  return setup_.options.while_waiting() ? Nanoseconds(kBetweenDrives) : Nanoseconds(kLongestBetweenDrives);
}

// The thread of messages does the work meanwhile.
void MessageCore::sleep_until(const std::function<bool()>& over, Nanoseconds until) {
  const MessageThread::Hurry hurry(setup_.shared->thread);
  setup_.shared->thread.wake();
  waiting_.fetch_add(1);
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, until - now(), over);
  }
  waiting_.fetch_sub(1);
}

// The thread of messages holds state_mutex_ for moments at a time. Unlocked result: the transport does not return.
std::unique_lock<std::mutex> MessageCore::lock_state() const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::unique_lock lock(state_mutex_, std::defer_lock);
  while (!lock.try_lock() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kTick);
  return lock;
}

// A caller that gets a failure may release the memory that the operations read and write. So this waits until the
// thread of messages no longer uses it: poll() tests failed_ with the same mutex held, and does nothing once failed_ is
// set.
void MessageCore::wait_until_untouched() const {
  if (setup_.transport->uses_memory_in_calls_alone()) {  // its calls always return
    const std::scoped_lock lock(state_mutex_);
    return;
  }
  static_cast<void>(lock_state());
}

void MessageCore::throw_failure(const MessageWork* work, Nanoseconds since) {
  wait_until_untouched();
  std::string cause;
  bool own = false;
  {
    const std::scoped_lock lock(mutex_);
    cause = cause_;
    own = own_failure_;
  }
  if (own || !work) throw CommError(cause);
  throw CommError(describe_waiting(*work, now() - since, "was stopped after") + ": " + cause);
}

std::string MessageCore::describe_waiting(const MessageWork& work, Nanoseconds elapsed, const char* verb) {
  const Descriptor& descriptor = work.operation_.descriptor();
  return describe(descriptor, descriptor.sequence) + ", " + verb + " " + format_duration(elapsed);
}

std::string MessageCore::describe_hindrance(const MessageWork& work) const {
  const auto state = lock_state();
  if (!state) return "; a call of " + setup_.backend + " does not return";
  const MessageOperation& first = pending_.empty() ? work.operation_ : pending_.front()->operation_;
  std::string text;
  if (&first != &work.operation_) {
    text = " behind " + describe(first.descriptor(), first.descriptor().sequence);
  }
  return text + "; missing: " + describe_missing(first);
}

std::vector<MissingRank> MessageWork::missing() const {
  const auto state = core_->lock_state();
  return complete_ || !state ? std::vector<MissingRank>{} : core_->missing_of(operation_);
}

std::vector<MissingRank> MessageCore::missing_of(const MessageOperation& operation) const {
  const auto those = [&](const char* lacks, const auto& lacking) {
    std::vector<MissingRank> missing;
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank() || !lacking(r)) continue;
      std::string text = lacks;
      if (const std::string state = setup_.peer_state ? setup_.peer_state(r) : std::string(); !state.empty()) {
        text += " (" + state + ")";
      }
      missing.push_back({r, std::move(text)});
    }
    return missing;
  };
  // Reports the first of these conditions that any rank meets: the other ranks may be waiting for that rank themselves.
  auto missing = those("has not entered it", [&](int r) { return !operation.started() || !operation.has_entered(r); });
  const char* const partly = "has entered but not done its part";
  if (missing.empty()) missing = those(partly, [&](int r) { return operation.owes_values(r); });
  if (missing.empty()) missing = those(partly, [&](int r) { return operation.has_part_left(r); });
  return missing;
}

std::string MessageCore::describe_missing(const MessageOperation& operation) const {
  std::string text;
  for (const MissingRank& missing : missing_of(operation)) {
    text += (text.empty() ? "rank " : "; rank ") + rank_name(missing.rank) + " " + missing.lacks;
  }
  return text.empty() ? "no rank any more" : text;
}

}  // namespace dtrain::comm
