// How do the ranks of a communicator, which are processes of one machine, give each other data?
//
// Each writes a stream of bytes, which all read, itself included: a ring in memory that the processes share. A writer
// goes on when the slowest reader has made room. The memory's name is gone once all ranks have opened it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dtrain::test::fake_gpu {

inline constexpr int kMostRanks = 64;

class SharedMemory {
 public:
  // Throws std::runtime_error when the memory cannot be opened, or when another rank has another number of ranks or the
  // same place among them.
  SharedMemory(const std::string& name, int ranks, int rank);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  bool all_here();
  // This rank writes nothing more.
  void leave();
  bool all_left() const;

  // This rank has come to its next group of captured operations.
  void come_to_captured() { ++header_->captured[rank_]; }
  // Whether all ranks have come to as many.
  bool all_came_to_captured() const;

  // Takes as many of the bytes as there is room for; returns how many.
  std::size_t write(const void* data, std::size_t bytes);
  // How many bytes of a rank there are to read.
  std::size_t available(int from) const;
  // Not more than that.
  void read(int from, void* into, std::size_t bytes);

 private:
  struct Ring {
    std::atomic<std::uint64_t> written;
    std::atomic<std::uint64_t> read[kMostRanks];  // by reader
  };
  struct Header {  // all zeros at first
    std::atomic<std::uint32_t> ranks;
    std::atomic<std::uint32_t> here[kMostRanks];
    std::atomic<std::uint32_t> left[kMostRanks];
    std::atomic<std::uint32_t> captured[kMostRanks];
    Ring rings[kMostRanks];
  };

  std::byte* ring(int of) const;

  const std::string name_;
  const int ranks_;
  const int rank_;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  bool named_ = true;
};

}  // namespace dtrain::test::fake_gpu
