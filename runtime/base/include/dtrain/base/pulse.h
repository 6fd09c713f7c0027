// What the training thread of this process does now, in memory that the process's starter reads. The starter sees by it
// that the thread no longer gets on, and signals then make each thread write its stack into the same memory. So a rank
// that hangs needs no lock, no heap and no file to say where.
//
// Only the training thread writes the page; it costs a few plain stores at each change of phase. Before share() the
// page is this process's own.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "dtrain/base/shared_memory.h"

namespace dtrain {

struct PulsePage {
  static constexpr std::uint32_t kStacks = 1;        // the handler of stack_signal() is there
  static constexpr std::uint32_t kPythonStacks = 2;  // and that of python_stack_signal()

  std::atomic<std::uint64_t> moves{0};  // grows with each change below, and where something gets on
  std::atomic<std::int64_t> batch{-1};  // -1: before the first one of this process
  std::atomic<std::int64_t> first_batch{-1};
  std::atomic<std::int64_t> epochs_first{-1};  // the batch with which the epoch began: its data may come late
  std::atomic<std::uint32_t> in_batch{0};
  std::atomic<std::uint32_t> phase{0};  // profile::Phase
  std::atomic<std::uint32_t> waits{0};  // 1: for other ranks, and has done so for a while
  std::atomic<std::uint32_t> handlers{0};
  std::atomic<std::int32_t> thread{0};  // the training thread's number
  // What it waits for, written before `waits`: for people, and of a collective its name, number and payload.
  std::array<char, 256> wait{};
  std::array<char, 24> operation{};  // empty: no collective
  std::atomic<std::uint64_t> sequence{0}, bytes{0};
  std::atomic<std::int64_t> waits_since{0};  // nanoseconds, by the monotonic clock
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What a thread waits for.
struct ShownOperation {
  std::string text;       // for people
  std::string operation;  // "all_reduce"; empty: no collective
  std::uint64_t sequence = 0, bytes = 0;
};

inline constexpr std::size_t kPulseTextBegins = 4096;  // the stacks' text follows the page in the same memory
inline constexpr std::size_t kPulseBytes = 1u << 20;

// The signals that make a thread write its stack: its calls, or with a handler of Python all threads' Python calls.
int stack_signal();
int python_stack_signal();

class Pulse {
 public:
  static Pulse& own();

  // Moves the page to memory that another process can map, and sets the handler of stack_signal(). The calling thread
  // is the training thread from now on. Returns the memory's file descriptor, whose position is where text goes; the
  // same in later calls. SystemError.
  int share();
  // The handler of python_stack_signal() is set; it writes to share()'s file descriptor.
  void has_python_stacks();
  int text_fd() const { return memory_ ? memory_.fd() : -1; }  // -1: before share()

  void begin_batch(std::int64_t batch);
  void end_batch();
  void enter(std::uint32_t phase) {
    page_->phase.store(phase, std::memory_order_relaxed);
    move();
  }
  // Something gets on that is no change of phase.
  void move() { page_->moves.store(page_->moves.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void begin_epoch(std::int64_t batch) { page_->epochs_first.store(batch, std::memory_order_relaxed); }

 private:
  friend class ShownWait;
  bool show_wait(const ShownOperation& what);
  void hide_wait();

  PulsePage first_page_;
  PulsePage* page_ = &first_page_;
  SharedMemory memory_;
};

// A wait of this thread for other ranks. The page shows it once it has lasted for a while, if this is the training
// thread.
class ShownWait {
 public:
  static constexpr std::chrono::milliseconds kShownAfter{250};

  ShownWait() = default;
  ~ShownWait() { hide(); }
  ShownWait& operator=(ShownWait&&) = delete;

  // `describe`: returns a ShownOperation.
  template <class Describe>
  void lasts(std::chrono::nanoseconds waited, const Describe& describe) {
    if (asked_ || waited < kShownAfter) return;
    asked_ = true;
    shown_ = Pulse::own().show_wait(describe());
  }
  bool has_lasted() const { return asked_; }
  // The wait is over, or something has got on meanwhile.
  void hide() {
    if (shown_) Pulse::own().hide_wait();
    asked_ = shown_ = false;
  }

 private:
  bool asked_ = false;
  bool shown_ = false;
};

}  // namespace dtrain
