// The waits of a communicator over shared memory, and the errors that end them.
#include <sched.h>

#include "collective/descriptor.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/control.h"
#include "shared_memory/communicator.h"

namespace dtrain::comm {
namespace {

constexpr unsigned kLooksPerTick = 16;                         // while spinning, between two readings of the clock
constexpr unsigned kEagerLooks = 128;                          // without a pause: a peer in step comes that soon
constexpr std::chrono::microseconds kYielding{200};            // after spinning, before sleeping
constexpr std::chrono::milliseconds kLongestSleep{5};          // bounds the cost of a lost wake-up
constexpr std::chrono::microseconds kSleepBetweenDrives{100};  // while operations elsewhere need this thread
// Time for the control plane to report the cause before a peer's closed communicator becomes the error.
constexpr std::chrono::seconds kClosedGrace{1};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// While armed, peers see that this rank needs a futex call to wake up.
class Sleeper {
 public:
  explicit Sleeper(RankBlock& block) : block_(block) {}
  ~Sleeper() { disarm(); }
  Sleeper& operator=(Sleeper&&) = delete;
  bool armed() const { return armed_; }
  void arm() {
    block_.sleeping.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the looks that follow must not come before it
    armed_ = true;
  }
  void disarm() {
    if (armed_) block_.sleeping.store(0);
    armed_ = false;
  }

 private:
  RankBlock& block_;
  bool armed_ = false;
};

}  // namespace

bool Operation::test() {
  if (!failed_.empty()) throw CommError(failed_);
  if (!complete_) communicator_->progress();
  return complete_;
}

void Operation::wait() {
  if (complete_) return;
  if (!failed_.empty()) throw CommError(failed_);
  communicator_->wait_for(*this);
}

std::vector<MissingRank> Operation::missing() const {
  return complete_ || !communicator_ ? std::vector<MissingRank>{} : communicator_->missing_of(*this);
}

template <class Done>
void SharedMemoryCommunicator::wait_until(const Done& done, const Operation& operation, const Nanoseconds began) {
  Nanoseconds idle_since = began;
  bool warned = false;
  Sleeper sleeper(own_);
  ShownWait shown_wait;
  for (unsigned looks = 1;; ++looks) {
    const std::uint32_t seen = own_.wake_word.load();  // read first: every later event changes it
    if (segment_->aborted()) throw_if_aborted(&operation, began);
    const bool moved = advance();
    if (done()) return;
    if (moved) {
      sleeper.disarm();
      shown_wait.hide();
      idle_since = now();
      continue;
    }
    tick_is_old_ = true;
    if (spin_ > Nanoseconds{0} && looks % kLooksPerTick != 0 && !sleeper.armed()) {
      if (looks > kEagerLooks) relax();
      continue;
    }
    const bool outstanding_elsewhere = drive_others();
    if (done()) return;
    const Nanoseconds time = now();
    const Nanoseconds idle = time - idle_since;
    if (idle < spin_) continue;
    if (time - began > setup_.options.timeout) time_out(operation);
    shown_wait.lasts(idle, [&] { return shown(operation.descriptor(), operation.sequence(), world_size_); });
    if (idle > kClosedGrace) fail_if_closed(operation, time - began);
    if (!warned && time - began > setup_.options.warn_after) {
      warned = true;
      setup_.options.log->warn("{}: {}", rank_name(rank_), describe_waiting(operation, time - began, "has waited for"));
    }
    if (idle < spin_ + kYielding) {
      sched_yield();
    } else if (!sleeper.armed()) {
      sleeper.arm();  // then looks once more: a rank that moves from now on wakes this one
    } else {
      const Nanoseconds at_most = outstanding_elsewhere ? Nanoseconds(kSleepBetweenDrives) : Nanoseconds(kLongestSleep);
      segment_->sleep(rank_, seen, at_most.count());
    }
  }
}

void SharedMemoryCommunicator::wait_for(Operation& operation) {
  if (operation.sequence() >= published_) {
    throw_if_aborted(&operation, operation.timing_.enqueued);
    throw CommError(describe(operation.descriptor(), operation.sequence()) +
                    ", was waited for inside its group, which hands it over when it ends");
  }
  const Nanoseconds began = now();
  const Nanoseconds worked_before = worked_;
  wait_until([&] { return operation.complete_; }, operation, began);
  operation.timing_.exposed += tick_ - began - (worked_ - worked_before);  // read when it was completed
}

void SharedMemoryCommunicator::wait_for_slot(const Operation& operation) {
  const auto is_free = [this] {
    return pending_.size() < kRingSlots && all_reached(slot_phase_[sequence_ % kRingSlots]);
  };
  if (is_free()) return;
  publish();  // a group that is larger than the ring is handed over in portions
  wait_until(is_free, operation, now());
}

void SharedMemoryCommunicator::throw_if_aborted(const Operation* operation, Nanoseconds since) {
  if (!segment_->aborted()) return;
  const std::string cause = segment_->abort_cause();
  give_up(cause);
  if (!operation) throw CommError(cause);
  const Nanoseconds elapsed = since.count() ? now() - since : Nanoseconds{0};
  throw CommError(describe_waiting(*operation, elapsed, "was stopped after") + ": " + cause);
}

void SharedMemoryCommunicator::fail(const std::string& cause) {
  if (closing_) throw CommError(cause);
  segment_->abort(cause);
  const std::string first = segment_->abort_cause();
  give_up(first);
  throw CommError(first);
}

void SharedMemoryCommunicator::fail(const Operation& operation, const std::string& cause) {
  fail(cause + "; " + rank_name(rank_) + " found out after " + format_duration(now() - operation.timing_.enqueued));
}

void SharedMemoryCommunicator::time_out(const Operation& operation) {
  const auto timeout = std::chrono::duration_cast<Nanoseconds>(setup_.options.timeout);
  try {
    fail(rank_name(rank_) + ": " + describe_waiting(operation, timeout, "timed out after"));
  } catch (const CommError& error) {
    throw TimedOut(error);
  }
}

void SharedMemoryCommunicator::fail_if_closed(const Operation& operation, Nanoseconds elapsed) {
  for (int r = 0; r < world_size_ && !pending_.empty(); ++r) {
    if (segment_->rank(r).closed.load() == 0) continue;
    if (lacking(*pending_.front(), r)) {
      fail(rank_name(rank_) + ": " + describe_waiting(operation, elapsed, "was given up after"));
    }
  }
}

std::string SharedMemoryCommunicator::describe_waiting(const Operation& operation, Nanoseconds elapsed,
                                                       const char* verb) const {
  std::string text =
      describe(operation.descriptor(), operation.sequence()) + ", " + verb + " " + format_duration(elapsed);
  if (segment_->aborted() || pending_.empty()) return text;
  const Operation& first = *pending_.front();
  if (&first != &operation) {
    text += " behind " + describe(first.descriptor(), first.sequence());
  }
  return text + "; missing: " + describe_missing(first);
}

const char* SharedMemoryCommunicator::lacking(const Operation& operation, int r) const {
  if (!has_entered(r, operation.sequence())) return "has not entered it";
  const std::uint64_t phase = operation.transfer_.planned() ? operation.transfer_.required_phase() : 0;
  return segment_->rank(r).phase.load() < phase ? "has entered but not done its part" : nullptr;
}

std::vector<MissingRank> SharedMemoryCommunicator::missing_of(const Operation& operation) const {
  std::vector<MissingRank> missing;
  for (int r = 0; r < world_size_; ++r) {
    const char* const lacks = lacking(operation, r);
    if (!lacks || r == rank_) continue;
    std::string text = lacks;
    if (segment_->rank(r).closed.load() != 0) text += " and has closed its communicator";
    if (const std::string state = setup_.peer_state ? setup_.peer_state(r) : std::string(); !state.empty()) {
      text += " (" + state + ")";
    }
    missing.push_back({r, std::move(text)});
  }
  return missing;
}

std::string SharedMemoryCommunicator::describe_missing(const Operation& operation) const {
  std::string text;
  for (const MissingRank& missing : missing_of(operation)) {
    text += (text.empty() ? "" : "; ") + rank_name(missing.rank) + " " + missing.lacks;
  }
  return text.empty() ? "no rank any more" : text;
}

void SharedMemoryCommunicator::give_up(const std::string& cause) {
  for (const Shared& operation : pending_) {
    operation->failed_ = cause;
    operation->communicator_ = nullptr;
  }
  pending_.clear();
  running_ = 0;
}

}  // namespace dtrain::comm
