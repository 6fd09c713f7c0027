// Recycles the buffers of batches, so that a loader in its stride neither allocates nor touches new pages. A buffer
// returns when the last pointer to it goes, on any thread; the pool lives as long as its last buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace dtrain::data {

class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  // One kind of buffer for each entry of `sizes` (bytes); at most `keep` idle ones of each kind are kept.
  static std::shared_ptr<BatchPool> create(std::vector<std::size_t> sizes, std::size_t keep);
  ~BatchPool();

  // Thread safe. std::bad_alloc when there is no memory.
  std::shared_ptr<std::byte> take(std::size_t kind);

 private:
  BatchPool(std::vector<std::size_t> sizes, std::size_t keep);
  void give_back(std::size_t kind, std::byte* buffer) noexcept;

  const std::vector<std::size_t> sizes_;
  const std::size_t keep_;
  std::mutex mutex_;
  std::vector<std::vector<std::byte*>> idle_;
};

}  // namespace dtrain::data
