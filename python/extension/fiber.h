// A function that runs on a stack of its own within the thread of its caller, and can be suspended in the middle of it
// (a coroutine with a stack). It is how dtrain's training loop, which calls its trial, also serves a script that calls
// dtrain: the loop runs here, and where it would call the trial it gives the thread back to the script.
//
// Both sides share the thread: its thread-local settings (autocast, grad mode, streams, the number of threads) and its
// identity, so code of libtorch sees no difference. One side runs at a time, so neither needs locks.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace dtrain::python {

class Fiber {
 public:
  // `body` runs when resume() is called for the first time. It must not throw. SystemError without memory for a stack.
  explicit Fiber(std::function<void()> body);
  // A body that has not ended is abandoned: nothing on its stack is destroyed.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it calls suspend() or ends. Not from within the body, always from the same thread, and not once
  // it has ended.
  void resume();
  // From within the body, and not while an exception is being handled: goes back to the caller of resume().
  void suspend();
  bool has_ended() const { return has_ended_; }
  bool is_inside() const { return is_inside_; }  // the body runs

 private:
  static void run(unsigned low, unsigned high);

  std::function<void()> body_;
  std::byte* stack_ = nullptr;
  ucontext_t caller_{};
  ucontext_t own_{};
  bool is_inside_ = false;
  bool has_ended_ = false;
};

}  // namespace dtrain::python
