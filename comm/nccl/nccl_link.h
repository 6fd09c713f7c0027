// NCCL's communicator, its start and its end. The communicator is non-blocking: its functions return at once, and
// ready() tells whether they are done. Only stop() may be called on any thread: a mutex separates it from the owner's
// calls, which go through use().
//
// After a failure the operations on the device are stopped: with ncclCommRevoke where NCCL has it, after which shrink()
// is still possible, else with ncclCommAbort. The destructor calls ncclCommAbort then, exactly once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "nccl/nccl_api.h"

namespace dtrain::comm {

struct NcclWaiting {
  std::chrono::milliseconds timeout;
  std::function<void()> check;            // throws when waiting has become pointless
  std::function<std::string()> who_else;  // facts about the other ranks, for the error at the deadline
};

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

}  // namespace dtrain::comm
