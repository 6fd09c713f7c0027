// The communicator "thread": ranks are threads of one process, whose heap memory is visible to all of them.
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/pages.h"
#include "dtrain/base/error.h"
#include "harness/run_ranks.h"
#include "shared_memory/communicator.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {
namespace {

// The meeting point at which the threads exchange their parts. Any thread.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(int world_size) : world_size_(static_cast<std::size_t>(world_size)) {}

  // Returns the parts of all ranks of allocation `number`, once all ranks have given theirs.
  std::vector<std::shared_ptr<std::byte>> exchange(std::uint64_t number, int rank, std::shared_ptr<std::byte> part,
                                                   const WaitCheck& check) {
    std::unique_lock lock(mutex_);
    Table& table = tables_[number];
    table.parts.resize(world_size_);
    table.came.resize(world_size_);
    table.parts[static_cast<std::size_t>(rank)] = std::move(part);
    table.came[static_cast<std::size_t>(rank)] = true;
    if (++table.brought == world_size_) changed_.notify_all();
    while (table.brought < world_size_) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
      check([&table] { return table.missing(); });
    }
    auto parts = table.parts;
    if (++table.taken == world_size_) tables_.erase(number);
    return parts;
  }

 private:
  struct Table {
    std::string missing() const {
      std::string text;
      for (std::size_t r = 0; r < came.size(); ++r) {
        if (!came[r]) text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
      }
      return text.empty() ? "no rank any more" : text;
    }
    std::vector<std::shared_ptr<std::byte>> parts;
    std::vector<bool> came;
    std::size_t brought = 0;
    std::size_t taken = 0;
  };
  const std::size_t world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Table> tables_;
};

class ThreadMemory final : public Memory {
 public:
  ThreadMemory(std::shared_ptr<ThreadMeeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  std::shared_ptr<Region> allocate(std::size_t bytes, const WaitCheck& check) override {
    auto region = exchange(allocate_zeroed(bytes), check);
    region->bytes = bytes;
    for (const auto& part : region->parts) region->bases.push_back(part.get());
    return region;
  }

  std::shared_ptr<Region> allocate_common(std::size_t bytes, const WaitCheck& check) override {
    auto region = exchange(rank_ == 0 ? allocate_zeroed(bytes) : nullptr, check);
    region->bytes = bytes;
    region->bases.push_back(region->parts.front().get());
    return region;
  }

 private:
  struct HeapRegion final : Region {
    std::vector<std::shared_ptr<std::byte>> parts;
  };

  std::shared_ptr<HeapRegion> exchange(std::shared_ptr<std::byte> own, const WaitCheck& check) {
    auto region = std::make_shared<HeapRegion>();
    region->parts = meeting_->exchange(number_++, rank_, std::move(own), check);
    return region;
  }

  std::shared_ptr<ThreadMeeting> meeting_;
  const int rank_;
  std::uint64_t number_ = 0;
};

}  // namespace
}  // namespace dtrain::comm

namespace dtrain::test {

std::vector<std::unique_ptr<comm::Communicator>> make_thread_communicators(int world_size,
                                                                           const comm::CommunicatorOptions& options) {
  if (world_size < 1) throw CommError("a world of " + std::to_string(world_size) + " ranks cannot be made");
  const auto memory = comm::allocate_zeroed(comm::Segment::bytes_needed(world_size));
  const auto segment = std::make_shared<comm::Segment>(memory, memory.get(), world_size);
  const auto meeting = std::make_shared<comm::ThreadMeeting>(world_size);
  std::vector<std::unique_ptr<comm::Communicator>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<comm::SharedMemoryCommunicator>(comm::SharedMemorySetup{
        rank, world_size, 0, "thread", segment, std::make_unique<comm::ThreadMemory>(meeting, rank), {}, options}));
  }
  return ranks;
}

}  // namespace dtrain::test
