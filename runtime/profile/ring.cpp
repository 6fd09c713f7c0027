#include "ring.h"

#include <algorithm>
#include <bit>
#include <new>
#include <type_traits>

#include "dtrain/base/error.h"

namespace dtrain::profile {

static_assert(std::is_trivially_copyable_v<Record>);

RingWriter::RingWriter(std::size_t bytes)
    : capacity_(
          std::bit_floor(std::max<std::uint64_t>(1, (bytes - std::min(bytes, sizeof(RingHeader))) / sizeof(Record)))) {
  memory_ = SharedMemory::create("profile ring", sizeof(RingHeader) + capacity_ * sizeof(Record));
  header_ = new (memory_.data()) RingHeader{};
  header_->magic = RingHeader::kMagic;
  header_->version = RingHeader::kVersion;
  header_->record_bytes = sizeof(Record);
  header_->capacity = capacity_;
  header_->free_heap = -1;
  records_ = reinterpret_cast<Record*>(memory_.data() + sizeof(RingHeader));
}

RingReader::RingReader(UniqueFd fd) : memory_(SharedMemory::map(std::move(fd))) {
  memory_.close_descriptor();  // a monitor of many ranks needs its file descriptors
  header_ = reinterpret_cast<RingHeader*>(memory_.data());
  if (memory_.size() < sizeof(RingHeader) || header_->magic != RingHeader::kMagic) {
    throw CommError("a rank handed over memory that is no ring of records");
  }
  if (header_->version != RingHeader::kVersion || header_->record_bytes != sizeof(Record)) {
    throw CommError("a rank's ring has version " + std::to_string(header_->version) + ", this agent reads version " +
                        std::to_string(RingHeader::kVersion),
                    "run the program with the dtrain it was built with");
  }
  // The capacity is read once, because the other side could change it later.
  capacity_ = header_->capacity;
  if (!std::has_single_bit(capacity_) || capacity_ > (memory_.size() - sizeof(RingHeader)) / sizeof(Record)) {
    throw CommError("a rank's ring claims " + std::to_string(capacity_) + " records, more than its memory holds");
  }
  records_ = reinterpret_cast<const Record*>(memory_.data() + sizeof(RingHeader));
  tail_ = head_seen_ = header_->tail.load(std::memory_order_acquire);
}

// Reads the writer's index only when all records up to the last known one have been taken. The writer's process is not
// trusted: an index that is too far ahead is an error instead of a read beyond the memory.
const Record* RingReader::peek() {
  if (tail_ == head_seen_) {
    head_seen_ = header_->head.load(std::memory_order_acquire);
    if (head_seen_ - tail_ > capacity_) {
      throw CommError("a rank's ring is damaged: " + std::to_string(head_seen_ - tail_) + " records in room for " +
                      std::to_string(capacity_));
    }
    if (tail_ == head_seen_) return nullptr;
  }
  return &records_[tail_ & (capacity_ - 1)];
}

}  // namespace dtrain::profile
