// The ways between a rank and the monitor process: a ring, and messages over a socket.
//
// The ring is between a rank (the only writer) and the monitor process (the only reader), in memory that both map. It
// outlives the rank: records committed before a kill -9 are still read. It outlives the monitor, too: the next reader
// continues after the last released record. Neither side ever waits for the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dtrain/base/json.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::profile {

enum class RecordKind : std::uint32_t {
  kStep = 1,
  kCollective = 2,
  kLoader = 3,
  kMark = 4,
  kClock = 5,
  kDeviceMemory = 6,
  kScope = 7
};

struct MarkPayload {
  RunMark mark;
  std::int64_t start_ns, end_ns;
};

// An entry of the ring, of a fixed size, so that neither side can lose its place.
struct Record {
  RecordKind kind;
  std::int64_t batch;
  union {
    StepRecord step;
    CollectiveRecord collective;
    LoaderRecord loader;
    MarkPayload mark;
    ClockRecord clock;
    DeviceMemoryRecord device_memory;
    ScopeRecord scope;
  };
};

struct RingHeader {
  static constexpr std::uint64_t kMagic = 0x474e495254524eULL;  // another value than any version before had

  std::uint64_t magic;
  std::uint32_t version;  // follows from the declared fields of the records
  std::uint32_t record_bytes;
  std::uint64_t capacity;  // records, a power of two
  // Each index is on its own cache line, so that writer and reader do not slow each other down.
  alignas(64) std::atomic<std::uint64_t> head;  // records committed, by the writer
  alignas(64) std::atomic<std::uint64_t> tail;  // records read, by the reader
  alignas(64) std::atomic<std::uint64_t> dropped;
  alignas(64) std::atomic<std::uint32_t> monitor_failed;  // set by the reader: a message about it is on the socket
  std::atomic<std::uint64_t> dropped_noted;               // of `dropped`, what the reader has written down
  std::atomic<std::int64_t> free_heap;  // bytes of the writer's malloc heap that are free; -1: not known
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class RingWriter {
 public:
  // SystemError if the memory is not available.
  explicit RingWriter(std::size_t bytes);

  // Returns room for one record; nullptr (and one more dropped): the ring is full. The reader may read the record after
  // commit(). `head` and `tail` only grow; their difference is the number of records in the ring. `tail_seen_` is a
  // copy of the reader's index that is renewed only when the ring looks full, so that recording does not touch the
  // reader's cache line.
  Record* reserve() {
    if (head_ - tail_seen_ == capacity_) {
      tail_seen_ = header_->tail.load(std::memory_order_acquire);
      if (head_ - tail_seen_ == capacity_) {
        header_->dropped.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
      }
    }
    return &records_[head_ & (capacity_ - 1)];
  }
  // Release: a reader that sees the new head sees the whole record.
  void commit() { header_->head.store(++head_, std::memory_order_release); }

  void note_free_heap(std::int64_t bytes) { header_->free_heap.store(bytes, std::memory_order_relaxed); }

  int fd() const { return memory_.fd(); }
  bool monitor_failed() const { return header_->monitor_failed.load(std::memory_order_acquire) != 0; }

 private:
  SharedMemory memory_;
  RingHeader* header_;
  Record* records_;
  std::uint64_t capacity_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_seen_ = 0;
};

class RingReader {
 public:
  // CommError if the memory is not a ring of this version.
  explicit RingReader(UniqueFd fd);

  // Returns the next committed record, or nullptr. It is valid until release().
  const Record* peek();
  void pop() { ++tail_; }
  // Releases popped records, which are in the file: the writer may reuse their room, and a later reader does not get
  // them.
  void release() { header_->tail.store(tail_, std::memory_order_release); }
  std::uint64_t dropped() const { return header_->dropped.load(std::memory_order_relaxed); }
  // Returns the number of dropped records that this reader or earlier ones have written down.
  std::uint64_t dropped_noted() const { return header_->dropped_noted.load(std::memory_order_relaxed); }
  void note_dropped(std::uint64_t total) { header_->dropped_noted.store(total, std::memory_order_relaxed); }
  std::int64_t free_heap() const { return header_->free_heap.load(std::memory_order_relaxed); }
  void set_monitor_failed() { header_->monitor_failed.store(1, std::memory_order_release); }

 private:
  SharedMemory memory_;
  RingHeader* header_ = nullptr;
  const Record* records_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
};

// The messages of ranks, starter and monitor over the monitor's socket: one JSON object each, with a "type".
inline constexpr int kProtocolVersion = 1;

namespace message_type {
inline constexpr const char* kHello = "hello";      // rank -> monitor, with the ring: rank, pid, world_size, header
inline constexpr const char* kWelcome = "welcome";  // monitor -> rank
inline constexpr const char* kRefused = "refused";  // monitor -> rank: reason
inline constexpr const char* kFlush = "flush";      // rank -> monitor: id
inline constexpr const char* kFlushed =
    "flushed";  // monitor -> rank: id, lost (lines); all records before are in the file or lost
inline constexpr const char* kError = "error";        // monitor -> one rank, once: message; the error of writing
inline constexpr const char* kFinished = "finished";  // rank -> monitor: the rank ends because it is done
inline constexpr const char* kStop = "stop";          // starter -> monitor: write what there is, and end
}  // namespace message_type

// Always returns an object; for a text that is not a message, it is an object without a "type".
inline Json parse_message(std::string_view text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_object() ? value : Json::object();
}

}  // namespace dtrain::profile
