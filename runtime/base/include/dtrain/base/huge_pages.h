// Pages of 2 MiB for files in memory that processes share (memfd, tmpfs). By default the kernel has pages of 4 KiB
// there, whatever madvise(MADV_HUGEPAGE) asks for. A part of 100 MB then takes 60 ms until it can be written, 20 ms in
// each further process that maps it, and 15 ms when it is freed; with huge pages 6 ms, and less than 1 ms.
#pragma once

#include <cstddef>
#include <span>

namespace dtrain {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;  // x86-64; arm64 with pages of 4 KiB

// Gives zeroed huge pages to a part of a file that has no pages there yet, as far as the kernel provides them quickly.
// What is left of the part has no pages: the caller reserves it. `memory`: where the part of the file from `offset` on
// is mapped, shared and for writing. Its ends need no alignment. Any thread.
void take_huge_pages(int file, std::size_t offset, std::span<std::byte> memory);

// Reserves addresses, at which nothing can be read or written yet, for a mapping with huge pages: from a multiple of
// kHugePage on. munmap() takes them back. Null: there are none, errno says why. Any thread.
std::byte* reserve_addresses(std::size_t bytes);

}  // namespace dtrain
