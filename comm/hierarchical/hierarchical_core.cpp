#include "hierarchical/hierarchical_core.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "dtrain/comm/timed_out.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kUnderWay = 16;  // operations that may have begun: fewer than any level takes without waiting
constexpr Nanoseconds kNoPause = std::chrono::microseconds(200);  // time without a pause after data has moved
constexpr Nanoseconds kShortest = std::chrono::microseconds(10);
constexpr Nanoseconds kLongest = std::chrono::microseconds(200);
// At the deadline the rank with the most precise cause reports first: a rank that misses ranks of its own host, then a
// rank that misses hosts, then a rank that only waits for its host's lowest rank.
constexpr std::chrono::milliseconds kGrace{250};
constexpr std::chrono::seconds kClosing{1};

}  // namespace

HierarchicalWork::HierarchicalWork(std::shared_ptr<HierarchicalCore> core, const Descriptor& descriptor, const void* in,
                                   void* out)
    : core_(std::move(core)), operation_(descriptor, in, out, core_->levels()) {}

bool HierarchicalWork::test() {
  return complete_ || core_->test(*this);
}

void HierarchicalWork::wait() {
  if (!complete_) core_->wait_for(*this);
}

std::size_t HierarchicalWork::bytes() const {
  return payload_bytes(operation_.descriptor(), core_->world_size());
}

HierarchicalCore::HierarchicalCore(Levels levels, const CommunicatorOptions& options)
    : levels_(std::move(levels)), options_(options) {
  if (!options_.log) options_.log = make_null_logger();
}

std::shared_ptr<HierarchicalWork> HierarchicalCore::issue(Descriptor descriptor, const void* in, void* out) {
  const Nanoseconds began = now();
  if (failed()) throw_failure(nullptr);
  descriptor.sequence = sequence_++;
  auto work = std::make_shared<HierarchicalWork>(shared_from_this(), descriptor, in, out);
  work->timing_.enqueued = began;
  if (group_open_) {
    grouped_.push_back(work);
  } else {
    work->submitted_ = true;
    pending_.push_back(work);
    advance();
  }
  work->timing_.exposed = now() - began;
  return work;
}

void HierarchicalCore::begin_group() {
  if (failed()) throw_failure(nullptr);
  if (group_open_) throw CommError("begin_group: a group is open already, and groups do not nest");
  group_open_ = true;
}

void HierarchicalCore::end_group() {
  if (!group_open_) throw CommError("end_group: no group is open");
  group_open_ = false;
  if (failed()) throw_failure(nullptr);
  for (Shared& work : grouped_) {
    work->submitted_ = true;
    pending_.push_back(std::move(work));
  }
  grouped_.clear();
  advance();
}

void HierarchicalCore::progress() {
  advance();
  if (failed()) throw_failure(nullptr);
}

bool HierarchicalCore::advance() {
  if (failed()) return false;
  bool moved = false;
  try {
    for (const Step step : {Step::kNotes, Step::kOuterNotes}) {  // a peer's abort() shows there
      if (Communicator* const notes = levels_.on[static_cast<std::size_t>(step)].get()) notes->progress();
    }
    for (std::size_t i = 0; i < std::min(pending_.size(), kUnderWay); ++i) {
      HierarchicalWork& work = *pending_[i];
      const bool begun = work.operation_.begun();
      moved = work.operation_.advance(turns_) || moved;
      if (!begun && work.operation_.begun()) work.timing_.started = now();
    }
  } catch (const std::exception& error) {
    const bool own =
        std::any_of(pending_.begin(), pending_.end(), [](const Shared& work) { return work->operation_.differs(); });
    fail(own ? "rank " + std::to_string(rank()) + ": " + error.what() : cause_below(error.what()), own);
    return false;
  }
  while (!pending_.empty() && pending_.front()->operation_.finished()) {
    pending_.front()->timing_.ended = now();
    pending_.front()->complete_ = true;
    pending_.pop_front();
  }
  return moved;
}

// Keeps only the reason from the error of a level, because the rest names the level's own operation and ranks.
std::string HierarchicalCore::cause_below(const std::string& cause) const {
  for (const auto& level : levels_.on) {
    try {
      if (level) level->progress();
    } catch (const CommError& error) {
      return error.what();
    }
  }
  return cause;
}

bool HierarchicalCore::test(HierarchicalWork& work) {
  if (failed()) throw_failure(&work);
  const Nanoseconds began = now();
  advance();
  work.timing_.exposed += now() - began;
  if (failed() && !work.complete_) throw_failure(&work);
  return work.complete_;
}

void HierarchicalCore::wait_for(HierarchicalWork& work) {
  if (!work.submitted_) throw CommError(describe(work.operation_.descriptor()) + " belongs to a group that is open");
  const Nanoseconds began = now();
  Nanoseconds moved_at = began;
  const auto grace = [this] {
    if (!pending_.front()->operation_.host_entered()) return 0 * kGrace;
    return levels_.is_leader() ? kGrace : 2 * kGrace;
  };
  bool warned = false;
  for (;;) {
    const bool moved = advance();
    if (work.complete_) break;
    if (failed()) throw_failure(&work);
    const Nanoseconds time = now();
    if (moved) moved_at = time;
    if (time - began > options_.timeout + grace()) {
      const std::string text = describe_waiting(work, "timed out after");
      fail("rank " + std::to_string(rank()) + ": " + text +
               "; missing: " + pending_.front()->operation_.describe_missing(),
           true);
      try {
        throw_failure(&work);
      } catch (const CommError& error) {
        throw TimedOut(error);
      }
    }
    if (!warned && time - began > Nanoseconds(options_.warn_after)) {
      warned = true;
      options_.log->warn("rank {}: {}; missing: {}", rank(), describe_waiting(work, "has waited for"),
                         pending_.front()->operation_.describe_missing());
    }
    if (time - moved_at < kNoPause) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::clamp((time - moved_at) / 8, kShortest, kLongest));
    }
  }
  work.timing_.exposed += now() - began;
}

std::string HierarchicalCore::describe_waiting(const HierarchicalWork& work, const char* verb) const {
  const Descriptor& descriptor = work.operation_.descriptor();
  std::string text = describe(descriptor) + ", operation " + std::to_string(descriptor.sequence) + ", " + verb + " " +
                     format_duration(now() - work.timing_.enqueued);
  if (pending_.empty() || pending_.front().get() == &work || work.complete_) return text;
  const Descriptor& first = pending_.front()->operation_.descriptor();
  return text + " behind " + describe(first) + ", operation " + std::to_string(first.sequence);
}

void HierarchicalCore::fail(const std::string& cause, bool own) {
  const std::scoped_lock lock(mutex_);
  if (failed_ || closed_) return;
  cause_ = cause;
  own_failure_ = own;
  failed_.store(true, std::memory_order_release);
  for (const auto& level : levels_.on) {
    if (level) level->abort(cause);
  }
}

void HierarchicalCore::throw_failure(const HierarchicalWork* work) {
  std::string cause;
  bool own = false;
  {
    const std::scoped_lock lock(mutex_);
    cause = cause_;
    own = own_failure_;
  }
  if (own || !work) throw CommError(cause);
  throw CommError(describe_waiting(*work, "was stopped after") + ": " + cause);
}

void HierarchicalCore::close() {
  const auto deadline = std::chrono::steady_clock::now() + kClosing;
  while (!failed() && !pending_.empty() && std::chrono::steady_clock::now() < deadline) {
    advance();
    std::this_thread::sleep_for(kShortest);
  }
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  if (!failed()) {
    cause_ = "rank " + std::to_string(rank()) + " has closed its communicator";
    own_failure_ = true;
    failed_ = true;  // so the remaining handles fail; the peers may still be at work
  }
  for (auto& level : levels_.on) level.reset();
  pending_.clear();
  grouped_.clear();
}

}  // namespace dtrain::comm
