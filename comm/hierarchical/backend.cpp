// The communicator over two levels: inside each host, and between hosts.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/arena_pins.h"
#include "collective/issuing.h"
#include "collective/pages.h"
#include "control/subgroup.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "hierarchical/hierarchical_operation.h"

namespace dtrain::comm {
namespace {

class HierarchicalCore;

// One operation and its handle.
class HierarchicalWork final : public WorkState, public std::enable_shared_from_this<HierarchicalWork> {
 public:
  HierarchicalWork(std::shared_ptr<HierarchicalCore> core, const Descriptor& descriptor, const void* in, void* out);

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override;
  std::uint64_t sequence() const override { return operation_.descriptor().sequence; }

 private:
  friend class HierarchicalCore;

  const std::shared_ptr<HierarchicalCore> core_;
  HierarchicalOperation operation_;
  ArenaPins pins_;
  bool submitted_ = false;  // not while its group is open
  bool complete_ = false;
  WorkTiming timing_;
};

// The state that the communicator shares with its Work handles: the operations in order, the levels below, and the end
// of both. Called on the communicator's thread; abort() on any thread.
class HierarchicalCore : public std::enable_shared_from_this<HierarchicalCore> {
 public:
  HierarchicalCore(Levels levels, const CommunicatorOptions& options);

  int rank() const { return levels_.rank; }
  int world_size() const { return static_cast<int>(levels_.placement.ranks()); }
  Levels& levels() { return levels_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool group_open() const { return group_open_; }

  std::shared_ptr<HierarchicalWork> issue(Descriptor descriptor, const void* in, void* out);
  void begin_group();
  void end_group();
  void progress();
  void abort(const std::string& cause) { fail(cause, false); }
  // No operation may follow. Gives outstanding operations a second to end, then closes the levels below.
  void close();

 private:
  friend class HierarchicalWork;
  using Shared = std::shared_ptr<HierarchicalWork>;

  bool advance();  // true if any operation advanced
  bool test(HierarchicalWork& work);
  void wait_for(HierarchicalWork& work);
  void fail(const std::string& cause, bool own);
  std::string cause_below(const std::string& cause) const;
  [[noreturn]] void throw_failure(const HierarchicalWork* work);
  std::string describe_waiting(const HierarchicalWork& work, const char* verb) const;
  Nanoseconds now() const { return clock_.monotonic(); }

  Levels levels_;
  CommunicatorOptions options_;
  SystemClock clock_;
  std::uint64_t sequence_ = 0;
  bool group_open_ = false;
  std::vector<Shared> grouped_;
  std::deque<Shared> pending_;  // not complete, in order
  Turns turns_{};

  std::mutex mutex_;  // guards the next three, and the levels against abort() while they go
  std::string cause_;
  bool own_failure_ = false;  // this rank found the failure: the cause is complete
  bool closed_ = false;
  std::atomic<bool> failed_{false};
};

constexpr std::size_t kUnderWay = 16;  // operations that may have begun: fewer than any level takes without waiting
constexpr Nanoseconds kBusyWait = std::chrono::microseconds(200);  // time without a pause after data has moved
constexpr Nanoseconds kShortestPause = std::chrono::microseconds(10);
constexpr Nanoseconds kLongestPause = std::chrono::microseconds(200);
// At the deadline the rank with the most precise cause reports first: a rank that misses ranks of its own host, then a
// rank that misses hosts, then a rank that only waits for its host's lowest rank.
constexpr std::chrono::milliseconds kGrace{250};
constexpr std::chrono::seconds kCloseTakes{1};

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
  work->pins_.take(options_.arena.get(), descriptor, in, out, world_size());
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
    const bool own = std::ranges::any_of(pending_, [](const Shared& work) { return work->operation_.differs(); });
    fail(own ? "rank " + std::to_string(rank()) + ": " + error.what() : cause_below(error.what()), own);
    return false;
  }
  while (!pending_.empty() && pending_.front()->operation_.finished()) {
    pending_.front()->timing_.ended = now();
    pending_.front()->complete_ = true;
    pending_.front()->pins_.release();
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
  ShownWait shown_wait;
  for (;;) {
    if (options_.while_waiting) options_.while_waiting();
    const bool moved = advance();
    if (work.complete_) break;
    if (failed()) throw_failure(&work);
    const Nanoseconds time = now();
    if (moved) {
      moved_at = time;
      shown_wait.hide();
    }
    const Descriptor& descriptor = work.operation_.descriptor();
    shown_wait.lasts(time - moved_at, [&] { return shown(descriptor, descriptor.sequence, world_size()); });
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
    if (time - moved_at < kBusyWait) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::clamp((time - moved_at) / 8, kShortestPause, kLongestPause));
    }
  }
  work.timing_.exposed += now() - began;
}

std::string HierarchicalCore::describe_waiting(const HierarchicalWork& work, const char* verb) const {
  const Descriptor& descriptor = work.operation_.descriptor();
  std::string text =
      describe(descriptor, descriptor.sequence) + ", " + verb + " " + format_duration(now() - work.timing_.enqueued);
  if (pending_.empty() || pending_.front().get() == &work || work.complete_) return text;
  const Descriptor& first = pending_.front()->operation_.descriptor();
  return text + " behind " + describe(first, first.sequence);
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
  const auto deadline = std::chrono::steady_clock::now() + kCloseTakes;
  while (!failed() && !pending_.empty() && std::chrono::steady_clock::now() < deadline) {
    advance();
    std::this_thread::sleep_for(kShortestPause);
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

// The Buffer of a rank that is alone on its host and so shares no memory.
class OwnBuffer final : public PrivateBuffer {
 public:
  OwnBuffer(std::shared_ptr<HierarchicalCore> core, std::size_t bytes) : PrivateBuffer(bytes), core_(std::move(core)) {}
  // After a failure the outer level may still send from this memory, until the process ends.
  ~OwnBuffer() override {
    if (core_->failed()) static_cast<void>(new (std::nothrow) std::shared_ptr<std::byte>(data()));
  }

 private:
  std::shared_ptr<HierarchicalCore> core_;
};

// The control planes of the levels, which outlive their communicators.
struct Groups {
  std::unique_ptr<ControlSubgroup> host;
  std::unique_ptr<ControlSubgroup> leaders;
};

class HierarchicalCommunicator final : public IssuingCommunicator {
 public:
  HierarchicalCommunicator(std::string name, std::uint32_t generation, Groups groups,
                           const std::shared_ptr<HierarchicalCore>& core)
      : name_(std::move(name)), generation_(generation), groups_(std::move(groups)), core_(core) {}
  ~HierarchicalCommunicator() override { core_->close(); }

  int rank() const override { return core_->rank(); }
  int world_size() const override { return core_->world_size(); }
  std::uint32_t generation() const override { return generation_; }
  std::string_view backend() const override { return name_; }

  // All ranks compare the allocation before the levels make it.
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    agree(Kind::kAllocate, bytes, core_->group_open());
    Communicator* const host = core_->levels().on[static_cast<std::size_t>(Step::kUp)].get();
    if (host) return host->allocate(bytes);
    return std::make_unique<OwnBuffer>(core_, bytes);
  }
  std::unique_ptr<Buffer> allocate_common(std::size_t bytes) override {
    agree(Kind::kAllocateCommon, bytes, core_->group_open());
    const Levels& levels = core_->levels();
    if (levels.several_hosts()) return nullptr;
    Communicator* const host = levels.on[static_cast<std::size_t>(Step::kUp)].get();
    if (host) return host->allocate_common(bytes);
    return std::make_unique<OwnBuffer>(core_, bytes);
  }
  void begin_group() override { core_->begin_group(); }
  void end_group() override { core_->end_group(); }
  void progress() override { core_->progress(); }
  void abort(const std::string& cause) override { core_->abort(cause); }

 private:
  Work issue(const Descriptor& descriptor, const void* in, void* out) override {
    return Work(core_->issue(descriptor, in, out));
  }

  const std::string name_;
  const std::uint32_t generation_;
  const Groups groups_;
  const std::shared_ptr<HierarchicalCore> core_;
};

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(ControlPlane& control, const MakeCommunicator& local,
                                                             const MakeCommunicator& outer,
                                                             const CommunicatorOptions& options,
                                                             const std::string& name) {
  const World& world = control.world();
  // The communicator has its own name, because there may be another communicator of this generation.
  constexpr std::size_t kIdBytes = 16;
  auto names = control.gather("comm/hierarchical", random_hex(kIdBytes / 2) + world.host);
  const std::string id = names[0].substr(0, kIdBytes) + "/";
  for (std::string& name : names) name.erase(0, kIdBytes);
  Groups groups;  // outlive the levels
  Levels levels{world.rank, Placement(names), {}};
  const auto make = [&](const MakeCommunicator& maker, ControlPlane& plane, const std::vector<int>& members,
                        std::initializer_list<Step> steps) {
    for (const Step step : steps) levels.on[static_cast<std::size_t>(step)] = maker(plane, members);
  };
  if (levels.several_here()) {
    groups.host = std::make_unique<ControlSubgroup>(control, id + std::to_string(levels.host()), levels.here());
    make(local, *groups.host, levels.here(), {Step::kNotes, Step::kUp, Step::kDown});
  }
  if (levels.several_hosts() && levels.is_leader()) {
    std::vector<int> leaders;
    for (const auto& ranks : levels.placement.hosts) leaders.push_back(ranks[0]);
    groups.leaders = std::make_unique<ControlSubgroup>(control, id + "leaders", leaders);
    make(outer, *groups.leaders, leaders, {Step::kOuterNotes, Step::kOuter});
  }
  auto core = std::make_shared<HierarchicalCore>(std::move(levels), options);
  // The callback may outlive the communicator.
  control.on_failure([weak = std::weak_ptr<HierarchicalCore>(core)](const RankFailure& failure) {
    if (const auto alive = weak.lock()) alive->abort(failure_text(failure));
  });
  return std::make_unique<HierarchicalCommunicator>(name, control.generation(), std::move(groups), core);
}

std::unique_ptr<Communicator> HierarchicalBackend::make(const BackendParts& parts) const {
  const auto over_shm = [&](ControlPlane& some, const std::vector<int>& ranks) {
    return ShmBackend().make({some, numbers_in_run(ranks, parts.members), parts.mpi, parts.address, parts.options});
  };
  const auto over_mpi = [&](ControlPlane& some, const std::vector<int>& ranks) {
    return MpiBackend().make({some, numbers_in_run(ranks, parts.members), parts.mpi, parts.address, parts.options});
  };
  return make_hierarchical_communicator(parts.control, over_shm, over_mpi, parts.options);
}

}  // namespace dtrain::comm
