// The state that a communicator over NCCL shares with its Work handles and Buffers: the operations in order, their end.
//
// An operation (or a group of them) is a batch: queued, then handed to NCCL on the stream (launched), which may go on
// in the background for a while, then running until the event behind it fires. pump() moves batches on and never waits
// for the GPU or for a peer. The owner's thread makes all calls, except those that NcclLaunchEnd puts behind a launch;
// abort() may come from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collective/descriptor.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/nccl.h"
#include "nccl/nccl_device.h"

namespace dtrain::comm {

struct NcclWaiting {
  std::chrono::milliseconds timeout;
  std::function<void()> check;            // throws when waiting has become pointless
  std::function<std::string()> who_else;  // facts about the other ranks, for the error at the deadline
};

// NCCL's communicator, its start and its end. The communicator is non-blocking: its functions return at once, and
// ready() tells whether they are done. Only stop() may be called on any thread: a mutex separates it from the owner's
// calls, which go through use().
//
// After a failure the operations on the device are stopped: with ncclCommRevoke where NCCL has it, after which shrink()
// is still possible, else with ncclCommAbort. The destructor calls ncclCommAbort then, exactly once.
class NcclLink {
 public:
  // Connects `world_size` ranks. Collective over them.
  static std::unique_ptr<NcclLink> connect(SharedNcclApi api, const ncclUniqueId& id, int rank, int world_size,
                                           const NcclWaiting& waiting);
  ~NcclLink();
  NcclLink& operator=(NcclLink&&) = delete;

  // Calls use(comm); CommError if the communicator has been stopped.
  template <class Use>
  auto use(const Use& use) {
    const std::scoped_lock lock(mutex_);
    if (stopped_) throw CommError("the NCCL communicator has been stopped");
    return use(comm_);
  }
  // False while a call goes on in the background; CommError if NCCL has found an error.
  bool ready();

  void stop() noexcept;

  // Removes a Buffer's registration, if the communicator still exists.
  void deregister(void* handle) noexcept;

  // Collective over the ranks that are left. Stops this communicator.
  std::unique_ptr<NcclLink> shrink(std::vector<int> excluded, bool failed, const NcclWaiting& waiting);

  // Waits for the peers to close too, for `at_most`. Called before the destructor, with no outstanding operations.
  void finalize(std::chrono::milliseconds at_most) noexcept;

 private:
  explicit NcclLink(SharedNcclApi api) : api_(std::move(api)) {}
  // Returns a new link once NCCL has connected it; stops a link that fails.
  static std::unique_ptr<NcclLink> once_ready(std::unique_ptr<NcclLink> link, const char* what,
                                              const NcclWaiting& waiting);
  void wait_until_ready(ncclComm_t comm, const char* what, const NcclWaiting& waiting);
  // Returns the state that follows; ncclInProgress: it does not end in time, or NCCL does not answer.
  ncclResult_t await(ncclResult_t state, std::chrono::milliseconds at_most) const;

  const SharedNcclApi api_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null once it is aborted or destroyed
  bool stopped_ = false;
  bool finalized_ = false;
};

// Calls `behind` as soon as NCCL, which launches in the background, has launched an operation. `behind` puts later work
// on the stream, above all the event of the operation's end. The thread that issues operations may look much later, and
// an event that it recorded then would have the time of that look.
//
// A thread of its own asks NCCL while something is being launched, and sleeps otherwise. begin() and look() come from
// the owner's thread.
class NcclLaunchEnd {
 public:
  // `link` must outlive the object.
  NcclLaunchEnd(SharedNcclApi api, int device, NcclLink& link);
  // Does not wait for an operation that is being launched; `behind` is not called any more.
  ~NcclLaunchEnd();
  NcclLaunchEnd& operator=(NcclLaunchEnd&&) = delete;

  // To be called when NCCL has just got operations, with nothing else under way. Calls `behind` once when NCCL has
  // launched them, on the thread that notices it first.
  void begin(std::function<void()> behind);
  // True if NCCL has nothing in progress and `behind` has been called. Throws CommError if NCCL has found an error, and
  // the exceptions of `behind`.
  bool look();

 private:
  void run();
  bool look_locked();

  const SharedNcclApi api_;
  const int device_;
  NcclLink& link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> behind_;  // of the operations being launched; guarded by mutex_, as all below
  std::exception_ptr error_;      // that the thread has found
  bool ending_ = false;
  std::thread thread_;
};

// The operation or replay that a rank has entered, as errors name it and ranks compare it.
struct NcclEntry {
  Descriptor descriptor;                      // of a replay the sequence number alone counts
  std::shared_ptr<const std::string> replay;  // name of a replayed graph; null: an operation
};

inline std::string describe(const NcclEntry& entry) {
  return entry.replay ? *entry.replay : describe(entry.descriptor);
}

// Ends operations that a GPU does not finish, also while the thread that issued them is blocked in a call of CUDA: a
// launch blocks when the device's queue is full, and it is full when an operation in front of it never ends. A thread
// of its own looks at the first operation that is under way.
//
// watch() and watch_nothing() come from the owner's thread, the callback from the watchdog's.
class NcclWatchdog {
 public:
  using Expired = std::function<void(const NcclEntry& entry, Nanoseconds began)>;

  // The deadline of an operation is `timeout` after everything in front of it has ended on this GPU.
  NcclWatchdog(SharedNcclApi api, int device, std::chrono::milliseconds timeout, Expired expired);
  ~NcclWatchdog();
  NcclWatchdog& operator=(NcclWatchdog&&) = delete;

  // Watches an operation. The events must outlive the next call of watch() or watch_nothing(). `began` has fired when
  // the operation may begin, `done` when it has ended. Without `began` the operation may begin now.
  void watch(const NcclEntry& entry, const CudaEvent* began, const CudaEvent& done);
  void watch_nothing();

 private:
  struct Watched {
    NcclEntry entry;
    const CudaEvent* began = nullptr;
    const CudaEvent* done = nullptr;
    std::optional<Nanoseconds> since;
  };
  void run();
  // Returns the operation if its time is over.
  std::optional<Watched> look();

  const SharedNcclApi api_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  const Expired expired_;
  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Watched> watched_;
  bool ending_ = false;
  std::thread thread_;
};

class NcclCore;

class NcclWork final : public WorkState {
 public:
  NcclWork(std::shared_ptr<NcclCore> core, const Descriptor& descriptor, const void* in, void* out)
      : core_(std::move(core)), descriptor_(descriptor), in_(in), out_(out) {}
  bool test() override;
  void wait() override;
  void join() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override;
  std::uint64_t sequence() const override { return descriptor_.sequence; }

 private:
  friend class NcclCore;

  // Returns the bytes that it writes to the caller's memory: none where a reduce() gives this rank no result.
  std::size_t written_bytes() const;
  // Returns the area from which host memory gets the result; null if NCCL writes the result to its place.
  StagingArea* result_area() const {
    return staged_out_ ? staged_out_.get() : in_ == out_ ? staged_in_.get() : nullptr;
  }

  const std::shared_ptr<NcclCore> core_;
  const Descriptor descriptor_;
  const void* const in_;  // the caller's
  void* const out_;
  const void* from_ = nullptr;  // memory that NCCL reads and writes: the same, or staged
  void* to_ = nullptr;
  std::unique_ptr<StagingArea> staged_in_;  // also for out if in and out are the same
  std::unique_ptr<StagingArea> staged_out_;
  bool submitted_ = false;  // not while its group is open
  bool complete_ = false;
  WorkTiming timing_;
};

struct NcclBatch {
  NcclEntry first;                               // the first of the works, or a replay
  std::vector<std::shared_ptr<NcclWork>> works;  // none: a replay
  std::unique_ptr<CudaEvent> ready;              // on the caller's stream, at issue; null without one
  std::unique_ptr<CudaEvent> began;  // on the communicator's stream, in front of the operations; null for a replay
  std::unique_ptr<CudaEvent> done;
  std::vector<ncclRedOp_t> own_ops;
  enum class State { kQueued, kLaunching, kRunning } state = State::kQueued;
  Nanoseconds replayed{0};  // when a replay was launched

  Nanoseconds enqueued() const;
};

// Throws CommError if NCCL has no such reduction, or none with these scales.
void check_reduction(const Descriptor& descriptor, int world_size);

struct NcclSetup {
  SharedNcclApi api;
  ControlPlane& control;
  NcclOptions nccl;
  CommunicatorOptions options;
};

class NcclCore : public std::enable_shared_from_this<NcclCore> {
 public:
  NcclCore(NcclSetup setup, std::unique_ptr<NcclLink> link);

  int rank() const { return setup_.control.world().rank; }
  int world_size() const { return setup_.control.world().size; }
  const NcclSetup& setup() const { return setup_; }
  NcclLink& link() { return *link_; }
  DevicePool& pool() { return pool_; }
  cudaStream_t stream() const { return stream_.get(); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Called on the owner's thread.
  std::shared_ptr<NcclWork> issue(Descriptor descriptor, const void* in, void* out);
  void agree(Descriptor descriptor);  // counts as an operation, but has no data
  void begin_group();
  void end_group();
  void progress();
  void order_after(cudaStream_t stream, std::uint64_t sequence);
  void synchronize(const char* what);  // waits for the own stream, by an event
  // Returns once everything issued has been handed over to NCCL, which takes no other calls before that, or on failure.
  void hand_over_all();
  // See NcclCommunicator.
  enum class CaptureFor { kReplays, kRehearsal };
  void begin_capture(CaptureFor what);
  void end_capture();
  void replayed();
  bool compares() const { return sequence_ < setup_.nccl.compared_operations; }
  // To be called before memory is freed: waits until the GPU has finished the work of this communicator and of the
  // caller's current stream; after a failure only for a moment. True if the GPU has finished.
  bool let_device_finish() noexcept;
  void close();

  void throw_if_failed(const NcclWork* work = nullptr, Nanoseconds since = {});

  // Called on any thread. The first cause stays.
  void abort(const std::string& cause) { fail(cause, false); }

 private:
  friend class NcclWork;
  using Shared = std::shared_ptr<NcclWork>;

  // nccl_core.cpp
  void submit(std::vector<Shared> works);
  void pump();
  bool advance();
  bool waits_for_host_data(const NcclBatch& batch) const;
  void complete(NcclBatch& batch);
  void fail(const std::string& cause, bool own);
  Nanoseconds now() const { return clock_.monotonic(); }

  // nccl_launch.cpp
  void launch(NcclBatch& batch);
  void hand_to_nccl(NcclBatch& batch);
  void put_behind(NcclBatch& batch);
  void finish_launch(NcclBatch& batch);
  void stage_in(NcclWork& work);
  void stage_out(NcclWork& work);
  void call(NcclBatch& batch, const NcclWork& work, ncclComm_t comm);
  ncclRedOp_t reduction(NcclBatch& batch, const Descriptor& descriptor, ncclComm_t comm);

  // nccl_capture.cpp
  void check_capturable(const Descriptor& descriptor, const void* in, const void* out) const;
  void capture(std::vector<Shared> works);
  void hand_over_captured(NcclBatch& batch, Nanoseconds began);
  void join_captured(cudaStream_t stream, std::uint64_t sequence);

  // nccl_watchdog.cpp
  void wait_for(NcclWork& work);
  void nap();  // a little, or until it has failed
  void time_out(const NcclWork& work, Nanoseconds since);
  void time_out(const NcclEntry& entry, Nanoseconds since, const NcclEntry& first);  // the first under way
  // Called on the watchdog's thread if the first operation under way has taken too long.
  void expire(const NcclEntry& entry, Nanoseconds began);
  void watch_first();
  std::string describe_waiting(const NcclEntry& entry, Nanoseconds elapsed, const char* verb) const;
  void compare_with_first(const std::vector<Descriptor>& descriptors);
  void remember(const NcclEntry& entry);
  std::string describe_others(const NcclEntry& waited_for);

  const NcclSetup setup_;
  SystemClock clock_;
  std::unique_ptr<NcclLink> link_;
  CudaStream stream_;
  DevicePool pool_;
  void* barrier_data_ = nullptr;  // one element, for operations without data
  EventTimes event_times_;
  std::optional<Nanoseconds> patience_after_failure_;  // until when let_device_finish() waits at most
  std::uint64_t sequence_ = 0;
  bool group_open_ = false;
  std::vector<Shared> grouped_;
  std::deque<NcclBatch> batches_;
  struct Capture {
    CaptureFor what = CaptureFor::kReplays;
    std::vector<NcclBatch> batches;
    std::size_t joined = 0;            // number of works, from the first, that are joined
    std::uint64_t first_sequence = 0;  // numbers from here on are given again once the capture has ended
  };
  std::optional<Capture> capture_;               // while one is under way
  std::shared_ptr<const std::string> captured_;  // the operations of the last capture, in words
  std::deque<NcclEntry> last_;                   // those issued last; guarded by mutex_

  std::mutex mutex_;
  std::condition_variable failed_now_;
  std::string cause_;         // guarded by mutex_
  bool own_failure_ = false;  // this rank found the failure: the cause is complete; guarded by mutex_
  std::atomic<bool> failed_{false};
  std::unique_ptr<NcclWatchdog> watchdog_;     // until close(), like the next member
  std::unique_ptr<NcclLaunchEnd> launch_end_;  // its thread uses the batch that is being launched
};

}  // namespace dtrain::comm
