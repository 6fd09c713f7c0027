#include "batch_pool.h"

#include <algorithm>
#include <new>
#include <utility>

namespace dtrain::data {

namespace {

std::byte* allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{BatchPool::kAlignment}));
}

void deallocate(std::byte* memory) {
  ::operator delete (memory, std::align_val_t{BatchPool::kAlignment});
}

}  // namespace

std::shared_ptr<BatchPool> BatchPool::create(std::size_t keep) {
  return std::shared_ptr<BatchPool>(new BatchPool(keep));
}

BatchPool::BatchPool(std::size_t keep) : keep_(keep) {
  idle_.reserve(keep_);  // so that give_back() never allocates
}

BatchPool::~BatchPool() {
  for (const Buffer& buffer : idle_) deallocate(buffer.memory);
}

std::shared_ptr<std::byte> BatchPool::take(std::size_t bytes) {
  Buffer buffer{nullptr, bytes};
  {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto one = idle_.begin(); one != idle_.end(); ++one) {
      const bool fits = one->bytes >= bytes && one->bytes / 2 <= bytes;
      if (fits && (best == idle_.end() || one->bytes <= best->bytes)) best = one;
    }
    if (best != idle_.end()) {
      buffer = *best;
      idle_.erase(best);
    }
  }
  if (buffer.memory == nullptr) buffer.memory = allocate(bytes);
  return {buffer.memory, [pool = shared_from_this(), size = buffer.bytes](std::byte* memory) {
            pool->give_back({memory, size});
          }};
}

void BatchPool::give_back(Buffer buffer) noexcept {
  if (keep_ == 0) return deallocate(buffer.memory);
  Buffer dropped{};
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() == keep_) {  // sizes have changed: the buffer that was idle for longest is freed
      dropped = idle_.front();
      idle_.erase(idle_.begin());
    }
    idle_.push_back(buffer);
  }
  if (dropped.memory != nullptr) deallocate(dropped.memory);
}

}  // namespace dtrain::data
