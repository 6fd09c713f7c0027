// The memory of tensors that is not libtorch's own: of large tensors on CPUs, and of flat tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include "dtrain/comm/communicator.h"

namespace dtrain::train {

// Returns a mapping of its own; null: there is no memory. Large mappings begin at a huge page and ask for huge pages:
// fewer page faults, and fewer translations of addresses. munmap() takes `bytes`. Any thread.
void* map_block(std::size_t bytes);

// Keeps the memory of large tensors on CPUs from step to step.
//
// A step allocates and frees the same large tensors each time. malloc either gives their pages back to the kernel, and
// every step pays for page faults, or keeps them on its heap, where small allocations that live longer settle between
// them: the heap then grows by a large tensor a step and is never used again (a GPT's scores of 16 MiB: 2.1 GB where
// 0.6 were in use). Here each large tensor has a mapping of its own, and freed mappings are kept by size. All mappings
// together stay within an eighth above the most that was ever in use at once: beyond that, the mapping that was unused
// for longest goes back to the kernel.
//
// Stands before libtorch's own allocator, which keeps serving small tensors. Any thread may allocate and free.
class TensorMemory final : public c10::Allocator {
 public:
  static constexpr std::size_t kLarge = 128 << 10;  // bytes; libtorch's allocator has smaller tensors
  static constexpr std::size_t kSlack = 32 << 20;   // bytes that may always be kept

  // Makes this libtorch's allocator for the rest of the process. Calling it again changes nothing.
  static TensorMemory& install();

  c10::DataPtr allocate(std::size_t bytes) override;  // c10::Error when there is no memory
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  // Bytes of large tensors.
  struct Use {
    std::size_t in_use = 0;
    std::size_t mapped = 0;
    std::size_t peak_in_use = 0;
    std::size_t peak_mapped = 0;
  };
  Use use() const;

  // Spans work that steps do not repeat, such as a validation. When it ends, mappings that were made meanwhile and that
  // no tensor uses go back to the kernel: steps need other sizes. Without effect where this is not libtorch's
  // allocator.
  class Interlude {
   public:
    Interlude();
    ~Interlude();
    Interlude& operator=(Interlude&&) = delete;

   private:
    std::uint64_t first_ = 0;
  };

 private:
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t number = 0;  // number of the mapping: later mappings have higher numbers
  };
  using Kept = std::list<Block>;  // the block that was freed first is in front

  explicit TensorMemory(c10::Allocator& small) : small_(small) {}
  static void give_back(void* data);  // frees large and small tensors
  Block take(std::size_t bytes);
  void keep(const Block& block);
  void unmap_oldest() { unmap(kept_.begin()); }
  Kept::iterator unmap(Kept::iterator place);  // returns the next place

  c10::Allocator& small_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;  // by address: the blocks that tensors use
  Kept kept_;
  std::map<std::size_t, std::vector<Kept::iterator>> free_;  // by bytes; the block that was freed last is at the end
  std::uint64_t mappings_ = 0;                               // made so far
  Use use_;
};

// A stretch of a flat buffer, which a rank updates or which is exchanged as a whole.
struct FlatRange {
  std::size_t group = 0;            // group of FlatParameters
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

comm::DataType comm_type(at::ScalarType type);  // Error for a type that parameters and gradients cannot have

// The memory of flat tensors: a model's parameters and gradients, the optimizer's state, the start values of local
// steps. It is on the device on which the rank trains. Besides this file, only compressors add offsets to an address
// (compression/bucket_compressor.cpp).
//
// Training thread only.
class FlatMemory {
 public:
  // A flat tensor in memory of the communicator. The buffer outlives every use of the tensor and of its views.
  struct Block {
    at::Tensor tensor;
    std::unique_ptr<comm::Buffer> buffer;
  };

  // `communicator`, which is the device's, outlives this object and every block.
  FlatMemory(comm::Communicator& communicator, c10::Device device) : communicator_(communicator), device_(device) {}

  // Returns zeroed memory with which collectives work without a copy. Collective.
  Block exchanged(std::int64_t elements, at::ScalarType type);
  // Returns one memory that every rank maps; empty on every rank if the ranks have no memory in common. Collective.
  std::optional<Block> common(std::int64_t elements, at::ScalarType type);
  // Returns this rank's own memory, zeroed. On a CPU it has pages of its own: a page exists once it is written, so a
  // rank that keeps a part pays for that part alone, and all pages go back to the kernel with the tensor. SystemError
  // where the kernel refuses.
  at::Tensor own(std::int64_t elements, at::ScalarType type) const;
  at::Tensor own_copy(const at::Tensor& flat) const;

  c10::Device device() const { return device_; }
  bool on_host() const { return device_.is_cpu(); }
  // Returns the bytes to which parameters are padded: a cache line; on a device one for each rank, so that every bucket
  // has parts of one size (NCCL's operations on parts need that). `equal_parts`: the same on a CPU, however many ranks
  // there are: where gradients and values differ in size, only equal parts are the same elements of both.
  std::int64_t alignment(bool equal_parts = false) const;

  // Returns the address of an element, for collectives.
  static std::byte* address(const at::Tensor& flat, std::int64_t element = 0);
  // Returns the bytes of the pages that lie wholly inside these elements.
  static std::int64_t whole_pages(const at::Tensor& flat, std::int64_t first, std::int64_t elements);
  static void clear(const at::Tensor& flat, std::int64_t first, std::int64_t elements);

 private:
  at::Tensor view_of(comm::Buffer& buffer, std::int64_t elements, at::ScalarType type) const;

  comm::Communicator& communicator_;
  const c10::Device device_;
};

}  // namespace dtrain::train
