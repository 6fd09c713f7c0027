#include "ring.h"

#include <algorithm>
#include <bit>
#include <new>
#include <type_traits>
#include <typeinfo>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"

namespace dtrain::profile {

static_assert(std::is_trivially_copyable_v<Record>);

namespace {

constexpr int kFormat = 10;  // of what has no declared fields: the header, the kinds of records, MarkPayload

// Describes a record by the names, types and places of its fields.
struct RingLayout {
  std::string text;
  const char* record = nullptr;

  template <typename T>
  void operator()(const Key& key, const T& value) {
    const auto place = reinterpret_cast<const char*>(&value) - record;
    text.append(key.name).append(typeid(T).name()).append(std::to_string(place));
    if constexpr (requires { T::fields(*this, value); }) T::fields(*this, value);
  }
  // Leaves out a value that is computed from others.
  void operator()(const Key&, std::int64_t&&) {}
};

template <typename... Records>
std::uint32_t version_of() {
  RingLayout layout{std::to_string(kFormat)};
  const auto add = [&layout](const auto& record) {
    layout.record = reinterpret_cast<const char*>(&record);
    record.fields(layout, record);
  };
  (add(Records{}), ...);
  for (std::size_t i = 0; i < kPhaseCount; ++i) layout.text += name_of(static_cast<Phase>(i));
  return crc32c(layout.text);
}

// The monitor must not read a ring of a program whose records differ.
std::uint32_t ring_version() {
  static const std::uint32_t kVersion =
      version_of<StepRecord, CollectiveRecord, LoaderRecord, ClockRecord, DeviceMemoryRecord, ScopeRecord>();
  return kVersion;
}

}  // namespace

RingWriter::RingWriter(std::size_t bytes)
    : capacity_(
          std::bit_floor(std::max<std::uint64_t>(1, (bytes - std::min(bytes, sizeof(RingHeader))) / sizeof(Record)))) {
  memory_ = SharedMemory::create("profile ring", sizeof(RingHeader) + capacity_ * sizeof(Record));
  header_ = new (memory_.data()) RingHeader{};
  header_->magic = RingHeader::kMagic;
  header_->version = ring_version();
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
  if (header_->version != ring_version() || header_->record_bytes != sizeof(Record)) {
    throw CommError("a rank's ring has version " + std::to_string(header_->version) + ", this monitor reads version " +
                        std::to_string(ring_version()),
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
