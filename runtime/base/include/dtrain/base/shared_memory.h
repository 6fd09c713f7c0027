// Memory that several processes map: a memfd, handed on as a descriptor. It has no name, so nothing is left behind
// when the processes end, however they end; it is reserved up front (fallocate), so no SIGBUS comes later.
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
  // Maps memory another process created; takes the descriptor. The size is read from it.
  static SharedMemory map(UniqueFd fd, bool writable = true);

  explicit operator bool() const { return data_ != nullptr; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, std::size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace dtrain
