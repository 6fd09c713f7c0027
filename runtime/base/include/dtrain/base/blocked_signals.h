// While it lives, the calling thread gets no signal, nor do threads and processes that it starts: they begin with the
// signals blocked that it had blocked.
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
