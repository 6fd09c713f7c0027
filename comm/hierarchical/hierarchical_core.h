// The state that a hierarchical communicator shares with its Work handles: the operations in order, the levels below,
// and the end of both. Called on the communicator's thread; abort() on any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/backends.h"
#include "hierarchical/hierarchical_operation.h"

namespace dtrain::comm {

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
  bool submitted_ = false;  // not while its group is open
  bool complete_ = false;
  WorkTiming timing_;
};

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

}  // namespace dtrain::comm
