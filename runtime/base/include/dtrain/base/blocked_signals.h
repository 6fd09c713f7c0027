// While this object lives, the calling thread receives no signals. Threads and processes that it starts receive none
// either: they inherit its mask of blocked signals.
#pragma once

#include <csignal>

#include <pthread.h>

namespace dtrain {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace dtrain
