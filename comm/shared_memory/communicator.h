// The communicator of ranks that share memory, for the shm backend and for the threads of tests.
//
// There is no background thread: each call to issue, progress, test or wait advances all outstanding operations as far
// as possible. One thread at a time, except abort().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/arena_pins.h"
#include "collective/issuing.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/numeric.h"
#include "dtrain/comm/backends.h"
#include "shared_memory/memory.h"
#include "shared_memory/segment.h"
#include "shared_memory/transfer.h"

namespace dtrain::comm {

// Chooses whether all-reduces of registered memory (Communicator::allocate) go through the staging areas.
//
// Directly, each rank writes its part of the sums into the memory of all ranks. On some processors (AMD EPYC) lines
// that another core has just written are so slow to overwrite that copying in and out is faster; on others (Intel Xeon)
// direct access is. So the first large all-reduces of a communicator try both ways, and the faster way stays. Both make
// the same sums in the same order, so the bits do not depend on the choice, and ranks may choose differently.
//
// One thread.
class StagingChoice {
 public:
  static constexpr std::size_t kLeastBytes = 64u << 10;  // smaller operations are not looked at, and are direct
  static constexpr std::size_t kTrials = 8;              // each way; the median counts
  static constexpr double kLeastGain = 0.95;             // staging has to take at most this share of the time

  // True if the next all-reduce of this many bytes is staged. In the trial the order is arbitrary but fixed, so that
  // neither way gets all of the large buckets.
  bool next(std::size_t bytes) {
    if (bytes < kLeastBytes) return false;
    if (decided_) return stages_;
    return (++asked_ * 0x9e3779b97f4a7c15ULL) >> 63 != 0;
  }
  bool decided() const { return decided_; }
  bool stages() const { return stages_; }

  // Records the time of the rank's own work on such an operation. True: this call has made the choice.
  bool took(std::size_t bytes, bool staged, Nanoseconds time) {
    if (decided_ || bytes < kLeastBytes) return false;
    if (++seen_ <= kWarmUp) return false;  // pages and caches are new
    std::vector<double>& times = staged ? staged_ : direct_;
    times.push_back(static_cast<double>(time.count()) / static_cast<double>(bytes));
    if (staged_.size() < kTrials || direct_.size() < kTrials) return false;
    decided_ = true;
    stages_ = median_high(staged_) < kLeastGain * median_high(direct_);
    return true;
  }

 private:
  static constexpr std::size_t kWarmUp = 4;

  bool decided_ = false, stages_ = false;
  std::uint64_t asked_ = 0;
  std::size_t seen_ = 0;
  std::vector<double> staged_, direct_;  // ns a byte
};

struct SharedMemorySetup {
  int rank = 0;
  int world_size = 1;
  std::uint32_t generation = 0;
  std::string backend;
  std::shared_ptr<Segment> segment;
  std::unique_ptr<Memory> memory;
  std::function<std::string(int rank)> peer_state;  // "stopped: no heartbeats"; empty text: not known
  CommunicatorOptions options;
  RankNames names{};
  std::function<void()> take_staging{};  // called before the first use of this rank's staging area; may be empty
};

class SharedMemoryCommunicator;

// One outstanding collective of this rank: its handle, its times and its end. transfer.h moves its data. Shared by the
// communicator and the Work handles; used on the thread of the communicator.
class Operation final : public WorkState {
 public:
  Operation(SharedMemoryCommunicator* communicator, const Transfer& transfer)
      : communicator_(communicator), transfer_(transfer) {}

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override { return transfer_.payload(); }
  std::uint64_t sequence() const override { return descriptor().sequence; }
  std::vector<MissingRank> missing() const override;

  const Descriptor& descriptor() const { return transfer_.descriptor(); }

 private:
  friend class SharedMemoryCommunicator;

  SharedMemoryCommunicator* communicator_;  // null once the communicator is gone
  Transfer transfer_;
  ArenaPins pins_;
  std::byte* scratch_ = nullptr;  // a piece of the arena that holds the data, until the operation is complete
  Nanoseconds worked_{0};         // time of this rank's steps
  int entered_ = 0;               // ranks seen to have entered it, in rank order
  bool complete_ = false;
  std::string failed_;  // cause for which it will never complete
  WorkTiming timing_;
};

class SharedMemoryCommunicator final : public IssuingCommunicator {
 public:
  explicit SharedMemoryCommunicator(SharedMemorySetup setup);
  ~SharedMemoryCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::uint32_t generation() const override { return setup_.generation; }
  std::string_view backend() const override { return setup_.backend; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Buffer> allocate_common(std::size_t bytes) override;
  void begin_group() override;
  void end_group() override;
  void progress() override;
  void abort(const std::string& cause) override { segment_->abort(cause); }

  void wait_for(Operation& operation);
  std::vector<MissingRank> missing_of(const Operation& operation) const;

 private:
  using Shared = std::shared_ptr<Operation>;

  // issue.cpp
  Work issue(const Descriptor& unnumbered, const void* in, void* out) override;
  Shared make_operation(const Descriptor& descriptor, const void* in, void* out);
  void place(Operation& operation);  // decides how its data, which is not inline, reaches the peers
  void publish();                    // shows the issued operations to the peers
  std::shared_ptr<Region> allocate_region(Kind kind, std::size_t bytes);

  // communicator.cpp
  bool advance();                   // true if any operation advanced
  bool plan(Operation& operation);  // false: a peer has not entered it
  void take_staging(const Operation& operation);
  void report_staging(const Transfer& transfer);
  void note_time(const Operation& operation);
  void run_step(Operation& operation);
  void run_small(Operation& operation);
  void finish_completed(bool& moved);
  void release_memory(Operation& operation);
  bool has_entered(int rank, std::uint64_t sequence) const;
  bool all_reached(std::uint64_t phase);
  void check_same(const Operation& operation);
  Nanoseconds now() {
    tick_is_old_ = false;
    return tick_ = clock_.monotonic();
  }
  // Returns the clock at the completion of the operation; if it is not complete, the clock now.
  Nanoseconds now_after(const Operation& operation) { return operation.complete_ ? tick_ : now(); }
  // Returns the start time of a small operation: the last reading of the clock, unless the thread has waited since.
  // Reading it again would take a good part of the operation.
  Nanoseconds small_now() { return tick_is_old_ ? now() : tick_; }

  // waiting.cpp
  void wait_for_slot(const Operation& operation);
  bool drive_others() { return setup_.options.while_waiting && setup_.options.while_waiting(); }
  template <class Done>
  void wait_until(const Done& done, const Operation& operation, Nanoseconds began);
  void throw_if_aborted(const Operation* operation = nullptr, Nanoseconds since = {});
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void fail(const Operation& operation, const std::string& cause);  // adds which rank noticed it and when
  [[noreturn]] void time_out(const Operation& operation);
  std::string describe_waiting(const Operation& operation, Nanoseconds elapsed, const char* verb) const;
  std::string describe_missing(const Operation& operation) const;
  const char* lacking(const Operation& operation, int rank) const;  // why others wait for `rank`; null: they do not
  void fail_if_closed(const Operation& operation, Nanoseconds elapsed);
  void give_up(const std::string& cause);
  std::string rank_name(int r) const { return setup_.names.of(r); }

  SharedMemorySetup setup_;
  const int rank_;
  const int world_size_;
  const std::shared_ptr<Segment> segment_;
  RankBlock& own_;
  SystemClock clock_;
  Nanoseconds tick_{0};  // the clock as last read
  bool tick_is_old_ = true;
  const std::shared_ptr<BufferTable> buffers_;
  Scratch scratch_;
  std::deque<Shared> pending_;   // not complete, in the order of issue
  Shared spare_;                 // the last small one that completed: reused once no handle refers to it
  std::size_t running_ = 0;      // index into pending_ of the first with steps of this rank left
  std::uint64_t sequence_ = 0;   // operations issued
  std::uint64_t published_ = 0;  // issued operations that the peers can see
  bool group_open_ = false;
  bool closing_ = false;  // the destructor runs: failures affect this rank alone
  bool staging_reported_ = false;
  StagingChoice staging_;
  std::uint64_t planned_phase_ = 0;                     // the phase at which the next operation to be planned begins
  std::array<std::uint64_t, kRingSlots> slot_phase_{};  // phase at which all have left the slot's operation
  std::vector<std::uint64_t> reached_;                  // phases that ranks were last seen to have reached
  Nanoseconds worked_{0};                               // time spent running steps, of all operations
  Nanoseconds spin_{0};                                 // time that a wait spins before it yields
};

}  // namespace dtrain::comm
