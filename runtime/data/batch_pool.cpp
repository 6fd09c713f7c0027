#include "batch_pool.h"

#include <new>
#include <utility>

namespace dtrain::data {

namespace {

std::byte* allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{BatchPool::kAlignment}));
}

void deallocate(std::byte* buffer) {
  ::operator delete (buffer, std::align_val_t{BatchPool::kAlignment});
}

}  // namespace

std::shared_ptr<BatchPool> BatchPool::create(std::vector<std::size_t> sizes, std::size_t keep) {
  return std::shared_ptr<BatchPool>(new BatchPool(std::move(sizes), keep));
}

BatchPool::BatchPool(std::vector<std::size_t> sizes, std::size_t keep)
    : sizes_(std::move(sizes)), keep_(keep), idle_(sizes_.size()) {
  for (auto& buffers : idle_) buffers.reserve(keep_);  // so that giving back never allocates
}

BatchPool::~BatchPool() {
  for (const auto& buffers : idle_) {
    for (auto* buffer : buffers) deallocate(buffer);
  }
}

std::shared_ptr<std::byte> BatchPool::take(std::size_t kind) {
  std::byte* buffer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& buffers = idle_.at(kind);
    if (!buffers.empty()) {
      buffer = buffers.back();
      buffers.pop_back();
    }
  }
  if (buffer == nullptr) buffer = allocate(sizes_[kind]);
  return {buffer, [pool = shared_from_this(), kind](std::byte* done) { pool->give_back(kind, done); }};
}

void BatchPool::give_back(std::size_t kind, std::byte* buffer) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (idle_[kind].size() < keep_) {
      idle_[kind].push_back(buffer);
      return;
    }
  }
  deallocate(buffer);
}

}  // namespace dtrain::data
