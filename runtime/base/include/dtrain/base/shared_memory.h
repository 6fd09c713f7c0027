// Memory that several processes map: a memfd, handed on as a file descriptor. It has no name, so nothing is left behind
// when the processes end, however they end; it is reserved up front (fallocate) and its size is sealed, so no SIGBUS
// comes later.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Zeroed, `size` rounded up to whole pages. SystemError when the host has not that much memory.
  static SharedMemory create(const std::string& label, std::size_t size);
  // The same with pages of 2 MiB, for as much as the kernel gives quickly (MADV_COLLAPSE). To fill it for the first
  // time takes a tenth of the time, and to write it to a disk without the page cache a sixth of the processor time.
  static SharedMemory create_of_huge_pages(const std::string& label, std::size_t size);
  // As create(), but nothing is reserved yet: reserve() must be called for each part before it is touched.
  static SharedMemory create_unreserved(const std::string& label, std::size_t size);
  // Maps memory another process created; takes the file descriptor. The size is read from it. SystemError when its size
  // is not sealed: a process that shrank it would kill its readers.
  static SharedMemory map(UniqueFd fd, bool writable = true);

  // Reserves whole pages, on the NUMA node of the caller. SystemError when the host has not that much memory.
  void reserve(std::size_t offset, std::size_t size) const;
  // Closes the file descriptor. The memory stays mapped, but can no longer be handed on.
  void close_descriptor() { fd_.reset(); }

  explicit operator bool() const { return data_ != nullptr; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  void take_huge_pages() const;
  SharedMemory(UniqueFd fd, std::byte* data, std::size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace dtrain
