// Where flat tensors lie: a model's parameters and gradients, the optimizer's state, what local steps remember. They
// lie on the device that the rank trains on. Besides this file, only compressors add offsets to an address
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

// A stretch of a flat buffer: what a rank updates, or what travels together.
struct FlatRange {
  std::size_t group = 0;            // of FlatParameters
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

comm::DataType comm_type(at::ScalarType type);  // Error: a type that parameters and gradients do not have

class FlatMemory {
 public:
  // A flat tensor in memory of the communicator. Nothing may use the tensor, or a view of it, without the buffer.
  struct Block {
    at::Tensor tensor;
    std::unique_ptr<comm::Buffer> buffer;
  };

  // `communicator`, which is the device's, outlives this and every block.
  FlatMemory(comm::Communicator& communicator, c10::Device device) : communicator_(communicator), device_(device) {}

  // Zeroed memory from which collectives copy nothing. Collective.
  Block exchanged(std::int64_t elements, at::ScalarType type);
  // One memory that every rank maps; empty on every rank where the ranks have no memory in common. Collective.
  std::optional<Block> common(std::int64_t elements, at::ScalarType type);
  // This rank's own memory, zeroed. On a CPU in pages of its own: a page exists once it is written, so a rank that
  // keeps a part pays for that part alone, and all pages go back to the kernel with the tensor. SystemError where the
  // kernel refuses.
  at::Tensor own(std::int64_t elements, at::ScalarType type) const;
  at::Tensor own_copy(const at::Tensor& flat) const;

  c10::Device device() const { return device_; }
  bool on_host() const { return device_.is_cpu(); }
  // What parameters are padded to, in bytes: a cache line, and on a device as many of them as there are ranks, so that
  // every bucket has parts of one size (NCCL's operations on parts need that). `equal_parts`: the same on a CPU,
  // however many ranks there are: where gradients and values differ in size, equal parts alone are the same elements of
  // both.
  std::int64_t alignment(bool equal_parts = false) const;

  // The address of an element, for collectives.
  static std::byte* address(const at::Tensor& flat, std::int64_t element = 0);
  // Bytes of the pages of memory that lie wholly inside these elements.
  static std::int64_t whole_pages(const at::Tensor& flat, std::int64_t first, std::int64_t elements);
  static void clear(const at::Tensor& flat, std::int64_t first, std::int64_t elements);

 private:
  at::Tensor view_of(comm::Buffer& buffer, std::int64_t elements, at::ScalarType type) const;

  comm::Communicator& communicator_;
  const c10::Device device_;
};

}  // namespace dtrain::train
