// Memory that several processes map: a memfd, passed on as a file descriptor. It has no name, so the kernel frees it
// with the last process, however that ends. Its size is sealed and, unless it is sparse, the memory is reserved in
// advance (fallocate), so access never raises SIGBUS.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dtrain/base/file.h"

namespace dtrain {

class SharedMemory {
 public:
  SharedMemory() = default;

  // Creates zeroed memory; `size` is rounded up to whole pages. SystemError if the host has too little memory.
  static SharedMemory create(const std::string& label, std::size_t size);
  // Creates memory with pages of 2 MiB, as far as the kernel provides them quickly (MADV_COLLAPSE). Filling them for
  // the first time takes a tenth of the time; writing them to a disk without the page cache takes a sixth of the
  // processor time.
  static SharedMemory create_of_huge_pages(const std::string& label, std::size_t size);
  // Like create(), but reserves nothing: reserve() must be called for each part before it is touched.
  static SharedMemory create_unreserved(const std::string& label, std::size_t size);
  // Like create_unreserved(), but of any size, also of more than the host has: the kernel gives each page when it is
  // first touched.
  static SharedMemory create_sparse(const std::string& label, std::size_t size);
  // Maps memory that another process has created; takes ownership of the file descriptor, from which it reads the size.
  // SystemError if the size is not sealed: if another process shrank the memory, SIGBUS would kill its readers.
  static SharedMemory map(UniqueFd fd, bool writable = true);

  // Reserves whole pages, on the NUMA node of the caller. SystemError if the host does not have that much memory.
  void reserve(std::size_t offset, std::size_t size) const;
  // Closes the file descriptor. The memory stays mapped but can no longer be passed on.
  void close_descriptor() { fd_.reset(); }

  explicit operator bool() const { return data_ != nullptr; }
  std::span<std::byte> bytes() const { return {data(), size()}; }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return data_ ? data_.get_deleter().size : 0; }
  int fd() const { return fd_.get(); }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::byte* data) const;
  };

  void take_huge_pages() const;
  SharedMemory(UniqueFd fd, std::byte* data, std::size_t size) : fd_(std::move(fd)), data_(data, Unmap{size}) {}
  UniqueFd fd_;
  std::unique_ptr<std::byte, Unmap> data_;
};

}  // namespace dtrain
