// Who wants to know how long threads wait for operations, and when each of these began and ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace dtrain::torch_distributed {

// An operation that has ended well. Times are nanoseconds of the monotonic clock.
struct EndedOperation {
  std::string_view name;       // "all_reduce"; its text is static
  std::uint64_t sequence = 0;  // in its group; 0: a message
  std::int64_t bytes = 0;      // of this rank's inputs or outputs, whichever are more
  int group_size = 1;
  int bucket = -1;  // of Observer::bucket()
  std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0;
  std::int64_t exposed_ns = 0;  // in which the training thread has waited for it or carried it out
};

// Any thread calls it. It must be quick and not throw, and must live as long as the process.
class Observer {
 public:
  virtual ~Observer() = default;
  // The calling thread waits for operations, or carries them out, until end_wait(). False: its waiting does not count,
  // for it is not the training thread or waits already; then end_wait() is not called.
  virtual bool begin_wait() = 0;
  virtual void end_wait() = 0;
  // The calling thread issues an operation. Returns its number among those of this backward pass; -1: it is of none.
  virtual int bucket() = 0;
  virtual void ended(const EndedOperation& operation) = 0;
};

// Sets the observer of this process's operations from now on.
void observe(Observer& observer);
Observer* current_observer();  // null: none

}  // namespace dtrain::torch_distributed
