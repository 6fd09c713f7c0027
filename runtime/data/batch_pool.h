// Recycles the buffers of batches, so that a loader in its steady state neither allocates nor touches new pages. A
// buffer returns when its last pointer is destroyed, on any thread; the pool lives as long as its last buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace dtrain::data {

class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  // Makes a pool that keeps at most `keep` idle buffers.
  static std::shared_ptr<BatchPool> create(std::size_t keep);
  ~BatchPool();

  // Returns a buffer of at least `bytes`, at most twice as many. Thread safe. std::bad_alloc if memory is short.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  explicit BatchPool(std::size_t keep);
  void give_back(Buffer buffer) noexcept;

  const std::size_t keep_;
  std::mutex mutex_;
  std::vector<Buffer> idle_;  // the buffer that returned last is at the end
};

}  // namespace dtrain::data
