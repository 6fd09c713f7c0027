#include "dtrain/base/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/huge_pages.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

// Maps memory with room for huge pages at an address where the kernel can use them.
std::byte* map_memory(int fd, std::size_t size, bool writable) {
  const int access = PROT_READ | (writable ? PROT_WRITE : 0);
  const auto check = [&](void* data) {
    if (data != MAP_FAILED) return static_cast<std::byte*>(data);
    throw SystemError("cannot map " + format_bytes(static_cast<double>(size)) + " of shared memory", errno);
  };
  if (size < kHugePage) return check(::mmap(nullptr, size, access, MAP_SHARED, fd, 0));
  std::byte* const place = reserve_addresses(size);
  void* const data = place ? ::mmap(place, size, access, MAP_SHARED | MAP_FIXED, fd, 0) : MAP_FAILED;
  if (place && data == MAP_FAILED) {
    const int code = errno;
    ::munmap(place, size);
    errno = code;
  }
  return check(data);
}

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void cannot_reserve(std::size_t size, const std::string& what_for, int code) {
  throw SystemError("cannot reserve " + format_bytes(static_cast<double>(size)) + " of shared memory" + what_for, code,
                    code == EFBIG ? limit_of_file_size()
                                  : "use fewer slots or a smaller model on this machine, or give it more memory");
}

void reserve_pages(int fd, std::size_t offset, std::size_t size, const std::string& what_for) {
  if (TEMP_FAILURE_RETRY(::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size))) != 0) {
    cannot_reserve(size, what_for, errno);
  }
}

}  // namespace

void SharedMemory::Unmap::operator()(std::byte* data) const {
  ::munmap(data, size);
}

SharedMemory SharedMemory::create(const std::string& label, std::size_t size) {
  SharedMemory memory = create_unreserved(label, size);
  reserve_pages(memory.fd(), 0, memory.size(), " for " + label);
  return memory;
}

SharedMemory SharedMemory::create_of_huge_pages(const std::string& label, std::size_t size) {
  SharedMemory memory = create_unreserved(label, size);
  memory.take_huge_pages();
  reserve_pages(memory.fd(), 0, memory.size(), " for " + label);
  return memory;
}

SharedMemory SharedMemory::create_unreserved(const std::string& label, std::size_t size) {
  // A memfd has no size limit of its own: if it reserved more memory than there is, the kernel would kill a process
  // instead of returning an error.
  if (const auto available = available_memory(); available && size > *available) {
    cannot_reserve(size, " for " + label, ENOMEM);
  }
  return create_sparse(label, size);
}

SharedMemory SharedMemory::create_sparse(const std::string& label, std::size_t size) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto fail = [&](int code) { cannot_reserve(size, " for " + label, code); };
  const std::size_t rounded = size == 0 ? page : (size + page - 1) / page * page;
  // Beyond the limit ftruncate() would send SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && rounded > limit.rlim_cur) fail(EFBIG);

  // The kernel takes names of up to 249 bytes.
  UniqueFd fd(::memfd_create(("dtrain-" + label).substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail(errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(rounded)) != 0) fail(errno);
  // The seals keep a process that gets the file descriptor from shrinking the memory while others have it mapped.
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) fail(errno);
  std::byte* data = map_memory(fd.get(), rounded, true);
  return SharedMemory(std::move(fd), data, rounded);
}

void SharedMemory::take_huge_pages() const {
  dtrain::take_huge_pages(fd(), 0, bytes());
}

void SharedMemory::reserve(std::size_t offset, std::size_t size) const {
  dtrain::take_huge_pages(fd_.get(), offset, {data() + offset, size});
  reserve_pages(fd_.get(), offset, size, "");
}

SharedMemory SharedMemory::map(UniqueFd fd, bool writable) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw SystemError("cannot map shared memory", errno);
  if (info.st_size <= 0) throw SystemError("cannot map shared memory: it is empty", EINVAL);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // -1: no memfd
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    throw SystemError(
        "cannot map shared memory: the process that made it can still change its size (no F_SEAL_SHRINK and "
        "F_SEAL_GROW), which would kill those who use it",
        EPERM, "all processes of a run need the same version of dtrain");
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  std::byte* data = map_memory(fd.get(), size, writable);
  return SharedMemory(std::move(fd), data, size);
}

}  // namespace dtrain
