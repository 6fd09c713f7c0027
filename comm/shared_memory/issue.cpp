// Issues the communicator's operations: announces them to the peers.
#include <cstring>

#include "dtrain/base/error.h"
#include "shared_memory/communicator.h"

namespace dtrain::comm {
namespace {

// Operations on ordinary memory up to this size copy it to a piece of the arena: one step in place of three.
constexpr std::size_t kScratchMost = 64u << 10;

// Memory that all ranks may write, returned by allocate_common().
class CommonBuffer final : public Buffer {
 public:
  CommonBuffer(std::shared_ptr<Region> region, std::size_t bytes) : region_(std::move(region)), bytes_(bytes) {}
  std::span<std::byte> bytes() override { return {region_->bases.front(), bytes_}; }

 private:
  std::shared_ptr<Region> region_;
  std::size_t bytes_;
};

}  // namespace

std::shared_ptr<Region> SharedMemoryCommunicator::allocate_region(Kind kind, std::size_t bytes) {
  agree(kind, bytes, group_open_);  // on the size; no operation is outstanding then
  // Rank 0 can name the missing ranks, so it reports first.
  const Nanoseconds deadline = now() + setup_.options.timeout + (rank_ == 0 ? Nanoseconds{0} : kRankZeroHeadStart);
  const auto check = [&](const std::function<std::string()>& missing) {
    throw_if_aborted();
    drive_others();
    if (now() > deadline) {
      throw CommError(describe(Signature{.count = bytes, .kind = kind}) +
                      " timed out while the ranks exchanged their memory; missing: " + missing());
    }
  };
  try {
    return kind == Kind::kAllocate ? setup_.memory->allocate(bytes, check)
                                   : setup_.memory->allocate_common(bytes, check);
  } catch (const std::exception& error) {
    fail(segment_->aborted() ? segment_->abort_cause()
                             : rank_name(rank_) + " cannot allocate: " + dtrain::describe(error));
  }
}

std::unique_ptr<Buffer> SharedMemoryCommunicator::allocate(std::size_t bytes) {
  return buffers_->add(allocate_region(Kind::kAllocate, bytes), bytes);
}

std::unique_ptr<Buffer> SharedMemoryCommunicator::allocate_common(std::size_t bytes) {
  return std::make_unique<CommonBuffer>(allocate_region(Kind::kAllocateCommon, bytes), bytes);
}

void SharedMemoryCommunicator::begin_group() {
  throw_if_aborted();
  if (group_open_) throw CommError("begin_group: a group is open already, and groups do not nest");
  group_open_ = true;
}

void SharedMemoryCommunicator::end_group() {
  if (!group_open_) throw CommError("end_group: no group is open");
  group_open_ = false;
  throw_if_aborted();
  publish();
  advance();
}

SharedMemoryCommunicator::Shared SharedMemoryCommunicator::make_operation(const Descriptor& descriptor, const void* in,
                                                                          void* out) {
  const Transfer transfer(descriptor, in, out, rank_, world_size_);
  if (!spare_ || spare_.use_count() != 1) return std::make_shared<Operation>(this, transfer);
  *spare_ = Operation(this, transfer);
  return std::move(spare_);
}

void SharedMemoryCommunicator::place(Operation& operation) {
  Transfer& transfer = operation.transfer_;
  transfer.set_places(*buffers_);
  if (world_size_ == 1) return;
  if (transfer.descriptor().kind == Kind::kAllReduce && transfer.is_registered()) {
    if (staging_.next(transfer.in_bytes())) transfer.stage_registered();
    return;
  }
  Arena* const arena = setup_.options.arena.get();
  if (!arena || transfer.in_bytes() > kScratchMost || !transfer.lacks_place()) return;
  auto* const scratch = static_cast<std::byte*>(arena->allocate(transfer.in_bytes()));
  if (!arena->contains(scratch, 1)) return arena->free(scratch);
  operation.scratch_ = scratch;
  transfer.use_scratch(scratch, *buffers_);
}

Work SharedMemoryCommunicator::issue(const Descriptor& unnumbered, const void* in, void* out) {
  Announcement& slot = own_.slot(sequence_);
  take_back(reinterpret_cast<std::byte*>(&slot), kCacheLine);
  take_back(slot.more, kCacheLine);
  const Nanoseconds began = now();
  const Nanoseconds worked_before = worked_;
  throw_if_aborted();
  Descriptor descriptor = unnumbered;
  descriptor.sequence = sequence_;
  Shared operation = make_operation(descriptor, in, out);
  Transfer& transfer = operation->transfer_;
  std::byte* const payload = slot.payload(transfer.in_bytes());
  if (payload == slot.more && transfer.is_inline()) take_back(payload, transfer.in_bytes());
  operation->timing_.enqueued = began;
  operation->pins_.take(setup_.options.arena.get(), descriptor, in, out, world_size_);
  if (sequence_ >= kRingSlots) wait_for_slot(*operation);

  pending_.push_back(operation);
  ++sequence_;
  slot.signature = descriptor;
  if (transfer.is_inline()) {
    if (const std::size_t bytes = transfer.in_bytes()) std::memcpy(payload, in, bytes);
  } else {
    place(*operation);
    slot.in = operation->descriptor().in;
    slot.out = operation->descriptor().out;
  }
  if (!group_open_) {
    publish();
    advance();
  }
  operation->timing_.exposed += now_after(*operation) - began - (worked_ - worked_before);
  return Work(std::move(operation));
}

// Peers read an announcement as soon as they see `ready`: signature, places and payload are written before it. `ready`
// is set before wake_others() reads `sleeping`, and a peer looks again after setting that: so the peer either sees the
// announcement or is woken.
void SharedMemoryCommunicator::publish() {
  if (published_ == sequence_) return;
  for (; published_ < sequence_; ++published_) own_.slot(published_).ready.store(published_ + 1);
  segment_->wake_others(rank_);
}

}  // namespace dtrain::comm
