#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "dtrain/base/error.h"
#include "engine/descriptor.h"

namespace dtrain::comm {
namespace {

class RegionBuffer final : public Buffer {
 public:
  RegionBuffer(std::shared_ptr<Engine::BufferTable> table, std::int32_t id, std::byte* data, std::size_t bytes)
      : table_(std::move(table)), id_(id), data_(data), bytes_(bytes) {}
  ~RegionBuffer() override {
    table_->by_address.erase(data_);
    table_->by_id.erase(id_);
  }
  std::span<std::byte> bytes() override { return {data_, bytes_}; }

 private:
  std::shared_ptr<Engine::BufferTable> table_;
  std::int32_t id_;
  std::byte* data_;
  std::size_t bytes_;
};

CommunicatorOptions with_log(CommunicatorOptions options) {
  if (!options.log) options.log = make_null_logger();
  return options;
}

}  // namespace

Engine::Engine(EngineSetup setup)
    : setup_(std::move(setup)),
      rank_(setup_.rank),
      world_size_(setup_.world_size),
      segment_(setup_.segment),
      own_(segment_->rank(rank_)) {
  setup_.options = with_log(std::move(setup_.options));
  // Spinning where ranks outnumber cores takes the core from the rank that is waited for.
  if (sysconf(_SC_NPROCESSORS_ONLN) >= world_size_) spin_ = std::chrono::microseconds(20);
}

Engine::~Engine() {
  if (!pending_.empty() && !segment_->aborted()) advance();
  // No abort: where a failure made this rank close, the control plane tells its cause, which says more. Peers that
  // wait for this rank and hear nothing give up by themselves (waiting.cpp).
  own_.closed.store(1);
  segment_->wake_others(rank_);
  give_up("rank " + std::to_string(rank_) + " has closed its communicator");
}

std::unique_ptr<Buffer> Engine::allocate(std::size_t bytes) {
  Descriptor descriptor;
  descriptor.kind = Kind::kAllocate;
  descriptor.count = bytes;
  issue(descriptor, nullptr, nullptr).wait();  // all agree on the size, and none has anything outstanding
  const Nanoseconds deadline = now() + setup_.options.timeout;
  std::shared_ptr<Region> region;
  try {
    region = setup_.memory->allocate(bytes, [&] {
      throw_if_aborted();
      if (now() > deadline) throw CommError(describe(descriptor) + " timed out while the ranks exchanged their memory");
    });
  } catch (const std::exception& error) {
    fail(segment_->aborted() ? segment_->abort_cause()
                             : "rank " + std::to_string(rank_) + " cannot allocate: " + dtrain::describe(error));
  }
  const std::int32_t id = next_buffer_++;
  std::byte* const own = region->bases[static_cast<std::size_t>(rank_)];
  buffers_->by_address[own] = id;
  buffers_->by_id[id] = std::move(region);
  return std::make_unique<RegionBuffer>(buffers_, id, own, bytes);
}

Work Engine::all_reduce(void* data, std::size_t count, DataType type, const AllReduceOptions& options) {
  const bool floating = type == DataType::kFloat32 || type == DataType::kFloat64;
  if (type == DataType::kUint8 && options.op == ReduceOp::kSum) {
    throw CommError("all_reduce: a sum of uint8 would overflow", "use int32 or int64");
  }
  if (!floating && options.post_scale != 1.0) {
    throw CommError("all_reduce: " + std::string(name_of(type)) + " cannot be scaled by " +
                    std::to_string(options.post_scale));
  }
  Descriptor descriptor;
  descriptor.kind = Kind::kAllReduce;
  descriptor.count = count;
  descriptor.type = static_cast<std::uint8_t>(type);
  descriptor.op = static_cast<std::uint8_t>(options.op);
  descriptor.post_scale = options.post_scale;
  descriptor.bucket = options.bucket;
  return issue(descriptor, data, data);
}

Work Engine::all_gather(const void* in, void* out, std::size_t count, DataType type) {
  Descriptor descriptor;
  descriptor.kind = Kind::kAllGather;
  descriptor.count = count;
  descriptor.type = static_cast<std::uint8_t>(type);
  return issue(descriptor, in, out);
}

Work Engine::broadcast(void* data, std::size_t count, DataType type, int root) {
  if (root < 0 || root >= world_size_) {
    throw CommError("broadcast: there is no rank " + std::to_string(root) + " in a world of " +
                    std::to_string(world_size_));
  }
  Descriptor descriptor;
  descriptor.kind = Kind::kBroadcast;
  descriptor.count = count;
  descriptor.type = static_cast<std::uint8_t>(type);
  descriptor.root = root;
  return issue(descriptor, data, data);
}

Work Engine::barrier() {
  return issue(Descriptor{}, nullptr, nullptr);
}

void Engine::locate(Descriptor& descriptor, const void* data) const {
  const auto* const first = static_cast<const std::byte*>(data);
  auto found = buffers_->by_address.upper_bound(first);
  if (found == buffers_->by_address.begin()) return;
  --found;
  const auto offset = static_cast<std::size_t>(first - found->first);
  if (offset + payload_bytes(descriptor) > buffers_->by_id.at(found->second)->bytes) return;
  descriptor.buffer = found->second;
  descriptor.offset = offset;
}

Work Engine::issue(Descriptor descriptor, const void* in, void* out) {
  const Nanoseconds began = now();
  const Nanoseconds worked_before = worked_;
  throw_if_aborted();
  descriptor.sequence = sequence_;
  const std::size_t bytes = payload_bytes(descriptor);
  if (bytes && (!in || !out)) throw CommError(describe(descriptor) + ": the data pointer is null");
  const auto operation = std::make_shared<Operation>(this, descriptor, in, out);
  operation->timing_.enqueued = began;
  const auto slot_is_free = [this] {
    return pending_.size() < kRingSlots && all_reached(slot_phase_[sequence_ % kRingSlots]);
  };
  if (sequence_ >= kRingSlots && !slot_is_free()) wait_until(slot_is_free, *operation);

  Descriptor& slot = own_.ring[sequence_ % kRingSlots];
  if (operation->inline_) {
    std::memcpy(static_cast<void*>(&slot), &descriptor, offsetof(Descriptor, payload));
    if (bytes) std::memcpy(slot.payload, in, bytes);
  } else {
    locate(descriptor, in);
    operation->descriptor_ = descriptor;
    std::memcpy(static_cast<void*>(&slot), &descriptor, offsetof(Descriptor, payload));
  }
  own_.published.store(++sequence_);
  segment_->wake_others(rank_);
  pending_.push_back(operation);
  advance();
  operation->timing_.exposed += now() - began - (worked_ - worked_before);
  return Work(operation);
}

bool Engine::all_published(std::uint64_t sequence) const {
  for (int r = 0; r < world_size_; ++r) {
    if (segment_->rank(r).published.load(std::memory_order_acquire) <= sequence) return false;
  }
  return true;
}

bool Engine::all_reached(std::uint64_t phase) const {
  if (phase == 0) return true;
  for (int r = 0; r < world_size_; ++r) {
    if (segment_->rank(r).phase.load(std::memory_order_acquire) < phase) return false;
  }
  return true;
}

void Engine::check_same(const Operation& operation) {
  const std::uint64_t sequence = operation.sequence();
  const auto theirs = [&](int r) -> const Descriptor& { return segment_->rank(r).ring[sequence % kRingSlots]; };
  bool same = true;
  for (int r = 0; r < world_size_; ++r) same = same && same_operation(theirs(r), operation.descriptor());
  if (same) return;
  std::string text = "the ranks entered different operations as their operation " + std::to_string(sequence) + ":";
  std::string first = describe(theirs(0));
  text += " rank 0 " + first;
  int shown = 0;
  for (int r = 1; r < world_size_ && shown < 4; ++r) {
    if (same_operation(theirs(r), theirs(0))) continue;
    text += ", rank " + std::to_string(r) + " " + describe(theirs(r));
    ++shown;
  }
  fail(text);
}

std::byte* Engine::resolve(int rank, const Descriptor& theirs) const {
  if (theirs.buffer < 0) return nullptr;
  const auto found = buffers_->by_id.find(theirs.buffer);
  if (found == buffers_->by_id.end() || theirs.offset + payload_bytes(theirs) > found->second->bytes) {
    throw CommError("rank " + std::to_string(rank) + " uses buffer " + std::to_string(theirs.buffer) + " in " +
                    describe(theirs) + ", which rank " + std::to_string(rank_) + " has released");
  }
  return found->second->bases[static_cast<std::size_t>(rank)] + theirs.offset;
}

bool Engine::plan(Operation& operation) {
  if (operation.planned()) return true;
  if (!all_published(operation.sequence())) return false;
  check_same(operation);
  try {
    operation.plan(*segment_, world_size_, planned_phase_,
                   [this](int r, const Descriptor& theirs) { return resolve(r, theirs); });
  } catch (const CommError& error) {
    fail(error.what());
  }
  planned_phase_ = operation.end_phase();
  slot_phase_[operation.sequence() % kRingSlots] = planned_phase_;
  return true;
}

bool Engine::advance() {
  bool moved = false;
  while (running_ < pending_.size()) {
    Operation& operation = *pending_[running_];
    if (!plan(operation)) break;
    while (operation.has_step() && all_reached(operation.required_phase())) {
      const Nanoseconds began = now();
      if (operation.step_ == 0) operation.timing_.started = began;
      operation.run_step(*segment_, rank_, world_size_);
      own_.phase.store(own_.phase.load(std::memory_order_relaxed) + 1);
      segment_->wake_others(rank_);
      const Nanoseconds took = now() - began;
      operation.timing_.exposed += took;
      worked_ += took;
      moved = true;
    }
    if (operation.has_step()) break;
    ++running_;
  }
  finish_completed(moved);
  return moved;
}

void Engine::finish_completed(bool& moved) {
  while (running_ > 0 && all_reached(pending_.front()->required_phase())) {
    Operation& operation = *pending_.front();
    operation.timing_.ended = now();
    operation.complete_ = true;
    pending_.pop_front();
    --running_;
    moved = true;
  }
}

void Engine::progress() {
  if (segment_->aborted()) throw_if_aborted();
  if (!pending_.empty()) advance();
}

}  // namespace dtrain::comm
