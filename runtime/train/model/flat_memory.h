// The memory of flat tensors: a model's parameters and gradients, the optimizer's state, the start values of local
// steps. It is on the device on which the rank trains. Besides this file, only compressors add offsets to an address
// (compression/compression_setup.cpp).
//
// Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "dtrain/comm/communicator.h"

namespace dtrain::train {

// A stretch of a flat buffer, which a rank updates or which is exchanged as a whole.
struct FlatRange {
  std::size_t group = 0;            // group of FlatParameters
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

comm::DataType comm_type(at::ScalarType type);  // Error for a type that parameters and gradients cannot have

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
