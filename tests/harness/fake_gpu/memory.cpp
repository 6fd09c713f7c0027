#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "graph.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kRounding = 512;  // the caching allocator's
constexpr std::size_t kSpanOverBytes = 16;

void* map(std::size_t bytes, int protection, int flags, int file) {
  void* const data = ::mmap(nullptr, bytes, protection, flags | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "fake GPU: mmap");
  return data;
}

// As libtorch writes it.
std::string with_unit(std::size_t bytes) {
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  const char* const units[] = {"KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; value > 1024 && unit < 2; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, units[unit]);
  return text;
}

Range range_of(std::uintptr_t begin, const Block& block) {
  return {begin, begin + block.bytes};
}

}  // namespace

Memory::Memory(int devices, std::size_t bytes_each)
    : bytes_each_(bytes_each), span_(bytes_each * kSpanOverBytes), stats_(devices), outside_(devices) {
  const std::size_t all = span_ * std::max(devices, 1);
  file_ = ::memfd_create("fake_gpu", MFD_CLOEXEC);
  if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(all)) != 0) {
    throw std::system_error(errno, std::generic_category(), "fake GPU: memfd_create");
  }
  base_ = reinterpret_cast<std::uintptr_t>(map(all, PROT_NONE, MAP_SHARED, file_));
  alias_ = reinterpret_cast<std::uintptr_t>(map(all, PROT_READ | PROT_WRITE, MAP_SHARED, file_));
  for (int d = 0; d < devices; ++d) next_.push_back(base_ + d * span_);
}

bool Memory::is_device(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address >= base_ && address < base_ + span_ * next_.size();
}

void* Memory::alias(const void* data) const {
  if (!is_device(data)) return const_cast<void*>(data);
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) - base_ + alias_);
}

c10::DeviceIndex Memory::device_of(const void* data) const {
  return static_cast<c10::DeviceIndex>((reinterpret_cast<std::uintptr_t>(data) - base_) / span_);
}

// Blocks that were freed too early are dangerous from now on: the real allocator splits and joins blocks, so that any
// allocation on this stream may get any of them.
void Memory::report_in_use(const Stream& stream) {
  Clock known = stream.clock;
  merge(known, machine().streams.host());
  for (auto& [begin, block] : blocks_) {
    if (!block.in_use || block.stream != stream.index) continue;
    block.in_use = false;
    for (const Conflict& use : machine().shadow.uses(range_of(begin, block), known)) {
      machine().report.add("freed too early: " + std::string(use.earlier.what) + " on " +
                           machine().streams.at(use.earlier.stream).name() + (use.wrote ? " writes" : " reads") +
                           " memory " + describe(begin) + " on " + stream.name() +
                           ", where it can be allocated again (" + std::string(allocating) + "): no record_stream()");
    }
    machine().shadow.forget(range_of(begin, block));  // reported once is enough
  }
}

std::uintptr_t Memory::find_cached(const Stream& stream, std::size_t bytes) {
  const int graph = stream.graph == nullptr ? 0 : stream.graph->number();
  for (const auto& [begin, block] : blocks_) {
    if (graph != 0 && !block.recorded.empty()) continue;  // in a capture nothing shows that those streams are done
    if (block.live || block.origin != Origin::kTorch || machine().unfinished.any(block.until)) continue;
    if (block.bytes == bytes && block.stream == stream.index && block.graph == graph) return begin;
  }
  return 0;
}

std::uintptr_t Memory::find_fresh(const Stream& stream, std::size_t bytes, std::size_t asked) {
  const auto device = stream.handle.device_index();
  auto& stats = stats_[device];
  if (info(device).first < bytes) {
    ++stats.num_alloc_retries;
    release_cached(device);
  }
  const auto begin = take_addresses(device, bytes, asked);
  stats.reserved_bytes[0].increase(bytes);
  stats.segment[0].increase(1);
  ++stats.num_device_alloc;
  Block& block = blocks_[begin];
  block.bytes = bytes;
  block.device = device;
  block.stream = stream.index;
  block.graph = stream.graph == nullptr ? 0 : stream.graph->number();
  return begin;
}

std::uintptr_t Memory::take_addresses(c10::DeviceIndex device, std::size_t bytes, std::size_t asked) {
  if (info(device).first < bytes) throw_out_of_memory(device, asked);
  const auto begin = next_[device];
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;  // so that they can be given back
  if (begin + pages > base_ + span_ * (device + 1)) throw std::length_error("fake GPU: no addresses are left");
  next_[device] += pages;
  return begin;
}

void Memory::fill(std::uintptr_t begin, Block& block, std::size_t asked, std::string_view by) {
  block.asked = asked;
  block.serial = ++allocations_;
  block.by = by;
  block.live = true;
  block.recorded.clear();
  block.until.clear();
  std::memset(alias(reinterpret_cast<void*>(begin)), 0xFF, block.bytes);
}

void* Memory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto device = current_device();
  const Stream& stream = machine().streams.current(device);
  auto& stats = stats_[device];
  machine().report.count(&FakeGpuCounts::allocations);
  if (machine().adversaries.allocation_fails()) throw_out_of_memory(device, bytes);
  report_in_use(stream);
  const std::size_t rounded = (bytes + kRounding - 1) / kRounding * kRounding;
  auto begin = find_cached(stream, rounded);
  if (begin == 0) begin = find_fresh(stream, rounded, bytes);
  Block& block = blocks_[begin];
  fill(begin, block, bytes, allocating);
  stats.allocation[0].increase(1);
  stats.allocated_bytes[0].increase(rounded);
  stats.active_bytes[0].increase(rounded);
  stats.requested_bytes[0].increase(bytes);
  return reinterpret_cast<void*>(begin);
}

void* Memory::allocate(std::size_t bytes, Origin origin) {
  const auto device = current_device();
  machine().report.count(&FakeGpuCounts::allocations);
  if (machine().adversaries.allocation_fails()) throw_out_of_memory(device, bytes);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kRounding - 1) / kRounding * kRounding;
  const auto begin = take_addresses(device, rounded, bytes);
  outside_[device] += rounded;
  Block& block = blocks_[begin];
  block.bytes = rounded;
  block.device = device;
  block.origin = origin;
  fill(begin, block, bytes, origin == Origin::kNccl ? "ncclMemAlloc" : "cudaMalloc");
  return reinterpret_cast<void*>(begin);
}

void Memory::free(void* data) {
  if (data == nullptr) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  Block& block = blocks_.at(begin);
  auto& stats = stats_[block.device];
  stats.allocation[0].decrease(1);
  stats.allocated_bytes[0].decrease(block.bytes);
  stats.active_bytes[0].decrease(block.bytes);
  stats.requested_bytes[0].decrease(block.asked);
  block.live = false;
  const Stream& stream = machine().streams.at(block.stream);
  Clock known = stream.clock;
  merge(known, machine().streams.host());
  Clock ended;  // the allocator waits for the recorded streams before it uses the block again
  for (const std::size_t recorded : block.recorded) merge(ended, machine().streams.at(recorded).clock);
  const Range range = range_of(begin, block);
  machine().shadow.forget(range, ended);
  block.until = ended;
  block.in_use = !machine().shadow.uses(range, known).empty();
}

void Memory::free(void* data, Origin origin) {
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == blocks_.end() || !found->second.live || found->second.origin != origin) {
    throw_cuda_error(1, "invalid argument");
  }
  if (origin == Origin::kCuda) {
    machine().streams.wait_for_device(found->second.device);
  } else {
    for (const Conflict& use : machine().shadow.uses(range_of(found->first, found->second), machine().streams.host())) {
      machine().report.add("freed too early: " + std::string(use.earlier.what) + " on " +
                           machine().streams.at(use.earlier.stream).name() + (use.wrote ? " writes" : " reads") +
                           " memory " + describe(found->first) + ", and ncclMemFree waits for nothing");
    }
    if (found->second.registrations > 0) {
      machine().report.add("memory " + describe(found->first) + " is freed while it is registered with NCCL");
    }
  }
  outside_[found->second.device] -= found->second.bytes;
  give_back(found);
}

std::map<std::uintptr_t, Block>::iterator Memory::give_back(std::map<std::uintptr_t, Block>::iterator block) {
  const Range range = range_of(block->first, block->second);
  machine().shadow.forget(range);
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.begin - base_),
              static_cast<off_t>(range.end - range.begin));
  return blocks_.erase(block);
}

Block* Memory::live_block(const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto* const block = const_cast<Block*>(block_at(address));
  if (block == nullptr || !block->live) return nullptr;
  const auto begin = std::prev(blocks_.upper_bound(address))->first;
  return address + bytes <= begin + block->bytes ? block : nullptr;
}

void Memory::record_stream(const void* data, std::size_t stream) {
  const auto block = blocks_.find(reinterpret_cast<std::uintptr_t>(data));
  if (block != blocks_.end() && block->second.stream != stream) block->second.recorded.insert(stream);
}

void Memory::release_cached(c10::DeviceIndex device) {
  const auto cached = [&](const Block& block) {
    return !block.live && block.device == device && block.graph == 0 && block.origin == Origin::kTorch;
  };
  // The wait comes before the loop: other threads may allocate meanwhile.
  if (std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& one) { return cached(one.second); })) {
    machine().streams.wait_for_device(device);
  }
  auto& stats = stats_[device];
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    const Block& block = it->second;
    if (!cached(block)) {
      ++it;
      continue;
    }
    stats.reserved_bytes[0].decrease(block.bytes);
    stats.segment[0].decrease(1);
    ++stats.num_device_free;
    it = give_back(it);
  }
}

void Memory::release_graph(int graph) {
  for (auto& [begin, block] : blocks_) {
    if (block.graph == graph) block.graph = 0;
  }
}

void Memory::erase_graph(int graph) {
  for (const auto& [begin, block] : blocks_) {
    if (block.graph == graph) std::memset(alias(reinterpret_cast<void*>(begin)), 0xFF, block.bytes);
  }
}

const Block* Memory::block_at(std::uintptr_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  return address < block->first + block->second.bytes ? &block->second : nullptr;
}

std::string Memory::describe(std::uintptr_t address) const {
  const Block* const block = block_at(address);
  if (block == nullptr) return "that is not allocated";
  return "of " + std::to_string(block->asked) + " bytes that " + std::string(block->by) + " allocated";
}

std::pair<std::size_t, std::size_t> Memory::info(c10::DeviceIndex device) const {
  return {bytes_each_ - static_cast<std::size_t>(stats_[device].reserved_bytes[0].current) - outside_[device],
          bytes_each_};
}

void Memory::throw_out_of_memory(c10::DeviceIndex device, std::size_t asked) {
  auto& stats = stats_[device];
  ++stats.num_ooms;
  const auto [free, total] = info(device);
  const auto allocated = static_cast<std::size_t>(stats.allocated_bytes[0].current);
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes[0].current);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", with_unit(asked), ". GPU ",
                   static_cast<int>(device), " has a total capacity of ", with_unit(total), " of which ",
                   with_unit(free), " is free. Including non-PyTorch memory, this process has ",
                   with_unit(total - free), " memory in use. Of the allocated memory ", with_unit(allocated),
                   " is allocated by PyTorch, and ", with_unit(reserved - allocated),
                   " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
                   "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
}

}  // namespace dtrain::test::fake_gpu
