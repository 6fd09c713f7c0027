// Puts what comes behind an operation on its stream as soon as NCCL has launched the operation, which it does in the
// background: the event of an operation's end, first of all. The thread that issues operations may look much later, and
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
  // `link` outlives it.
  NcclLaunchEnd(SharedNcclApi api, int device, NcclLink& link);
  // What is being launched is not waited for: `behind` is not called any more.
  ~NcclLaunchEnd();
  NcclLaunchEnd(const NcclLaunchEnd&) = delete;
  NcclLaunchEnd& operator=(const NcclLaunchEnd&) = delete;

  // NCCL has just been given operations, with nothing else under way: calls `behind` once when it has launched them, on
  // whichever thread sees that first.
  void begin(std::function<void()> behind);
  // Whether NCCL has nothing in progress, and `behind` has been called. CommError when NCCL has found an error, and
  // whatever `behind` throws.
  bool look();

 private:
  void run();
  bool look_locked();

  const SharedNcclApi api_;
  const int device_;
  NcclLink& link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> behind_;  // of what is being launched; guarded by mutex_, as all below
  std::exception_ptr error_;      // that the thread has found
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace dtrain::comm
