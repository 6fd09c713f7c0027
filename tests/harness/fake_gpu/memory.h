// Where is device memory, what is allocated in it, and when may freed memory be used again?
//
// The memory of all devices is one anonymous file, mapped twice: without access at the device address, and for kernels
// at the alias. Freed blocks are kept for allocations of the same size on the same stream, as libtorch's caching
// allocator does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "streams.h"

namespace dtrain::test::fake_gpu {

// Who has allocated memory: libtorch through its allocator, or a program through the CUDA runtime or NCCL.
enum class Origin { kTorch, kCuda, kNccl };

struct Block {
  std::size_t bytes = 0;  // rounded
  std::size_t asked = 0;
  c10::DeviceIndex device = 0;
  std::size_t stream = 0;    // that it was allocated on, by index
  int graph = 0;             // whose private memory it is; 0: none's
  std::uint64_t serial = 0;  // of the allocation
  std::string_view by;       // the operator
  Origin origin = Origin::kTorch;
  bool live = false;
  bool in_use = false;             // freed, while another stream was not known to have ended with it
  std::set<std::size_t> recorded;  // streams, by record_stream()
  Clock until;                     // of a freed block: what the recorded streams had then
  int registrations = 0;           // with communicators of NCCL
  bool was_registered = false;
};

// The operator that the calling thread allocates for.
inline thread_local std::string_view allocating = "empty";

class Memory {
 public:
  Memory(int devices, std::size_t bytes_each);

  void* alias(const void* data) const;
  bool is_device(const void* data) const;
  c10::DeviceIndex device_of(const void* data) const;

  // On the calling thread's current device and stream.
  void* allocate(std::size_t bytes);
  void free(void* data);
  // The same for programs: nothing of it is kept.
  void* allocate(std::size_t bytes, Origin origin);
  void free(void* data, Origin origin);
  void record_stream(const void* data, std::size_t stream);
  // Returns cached blocks to the device, which makes the host wait for it.
  void release_cached(c10::DeviceIndex device);
  // Private memory of a graph that is no more.
  void release_graph(int graph);
  // What a captured kernel has computed never was.
  void erase_graph(int graph);

  // The allocation that has all of these bytes; nullptr: none has.
  Block* live_block(const void* data, std::size_t bytes);
  const Block* block_at(std::uintptr_t address) const;
  // "in 512 bytes that empty allocated"
  std::string describe(std::uintptr_t address) const;
  std::pair<std::size_t, std::size_t> info(c10::DeviceIndex device) const;  // free, total
  c10::CachingDeviceAllocator::DeviceStats& stats(c10::DeviceIndex device) { return stats_[device]; }

 private:
  void report_in_use(const Stream& stream);
  std::uintptr_t find_cached(const Stream& stream, std::size_t bytes);
  std::uintptr_t find_fresh(const Stream& stream, std::size_t bytes, std::size_t asked);
  // Addresses that nothing had before.
  std::uintptr_t take_addresses(c10::DeviceIndex device, std::size_t bytes, std::size_t asked);
  void fill(std::uintptr_t begin, Block& block, std::size_t asked, std::string_view by);
  std::map<std::uintptr_t, Block>::iterator give_back(std::map<std::uintptr_t, Block>::iterator block);
  [[noreturn]] void throw_out_of_memory(c10::DeviceIndex device, std::size_t asked);

  const std::size_t bytes_each_;
  std::uintptr_t base_ = 0;
  std::uintptr_t alias_ = 0;
  std::size_t span_ = 0;  // addresses of each device: they are used once, so there are more than bytes
  int file_ = -1;
  std::vector<std::uintptr_t> next_;
  std::map<std::uintptr_t, Block> blocks_;
  std::vector<c10::CachingDeviceAllocator::DeviceStats> stats_;
  std::vector<std::size_t> outside_;  // bytes that programs have, by device
  std::uint64_t allocations_ = 0;
};

// Reports the host's access to device memory before the process dies of it.
void install_fault_handler();

}  // namespace dtrain::test::fake_gpu
