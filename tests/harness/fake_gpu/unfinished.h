// Which operations are launched and have not ended, and what waits for them?
//
// Kernels compute at once. An operation of NCCL ends when all ranks have come to it, and a copy of the CUDA runtime
// behind it is made then. Until an operation ends, no event behind it is ready. A kernel that must run after it blocks
// the host's thread that launches it: a device whose queue is full. A thread of this library moves operations on, as
// devices do without the host.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "streams.h"

namespace dtrain::test::fake_gpu {

class Operation {
 public:
  Operation(const Access& access, Clock before) : access_(access), before_(std::move(before)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Goes on as far as it can; true: it has ended. What it comes after has ended.
  virtual bool advance() = 0;
  // It never goes on; its results are NaN (all bits set).
  virtual void abandon() = 0;

  const Access& access() const { return access_; }
  const Clock& before() const { return before_; }

 private:
  const Access access_;
  const Clock before_;  // what it comes after
};

// The caller holds the machine's mutex; the waits let go of it meanwhile.
class Unfinished {
 public:
  // Takes an operation that has just been launched, and lets it go on as far as it can.
  void add(std::unique_ptr<Operation> operation);
  // Lets all go on; true: one has ended.
  bool advance();
  // Whether the clock covers one of them.
  bool any(const Clock& clock) const;
  // Blocks the calling thread until the clock covers none, or throws when the device is lost.
  void wait(const Clock& clock, c10::DeviceIndex device);
  // The same for all that the stream comes after.
  void wait_for_turn(const Stream& stream);
  void abandon_all();
  // When the last one ended of those that the clock covers; 0 where none did, or too long ago.
  double end_us(const Clock& clock) const;
  // From now on they go on without any call of the host.
  void run_in_background();

 private:
  bool may_begin(const Operation& operation) const;
  template <typename StillWaits>
  void block_while(c10::DeviceIndex device, const StillWaits& still_waits);
  void run();

  std::vector<std::deque<std::unique_ptr<Operation>>> of_streams_;  // by the stream's index, in order
  struct End {
    std::uint64_t number = 0;  // of the operation
    double us = 0;
  };
  std::vector<std::deque<End>> ends_;  // of the last operations, by the stream's index, in order
  bool advancing_ = false;
  bool running_ = false;
  bool stopping_ = false;
  std::atomic<unsigned> added_{0};
};

}  // namespace dtrain::test::fake_gpu
