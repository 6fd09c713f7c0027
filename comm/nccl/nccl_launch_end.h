// Calls `behind` as soon as NCCL, which launches in the background, has launched an operation. `behind` puts later work
// on the stream, above all the event of the operation's end. The thread that issues operations may look much later, and
// an event that it recorded then would have the time of that look.
//
// A thread of its own asks NCCL while something is being launched, and sleeps otherwise. begin() and look() come from
// the owner's thread.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "nccl/nccl_api.h"
#include "nccl/nccl_link.h"

namespace dtrain::comm {

class NcclLaunchEnd {
 public:
  // `link` must outlive the object.
  NcclLaunchEnd(SharedNcclApi api, int device, NcclLink& link);
  // Does not wait for an operation that is being launched; `behind` is not called any more.
  ~NcclLaunchEnd();
  NcclLaunchEnd(const NcclLaunchEnd&) = delete;
  NcclLaunchEnd& operator=(const NcclLaunchEnd&) = delete;

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
