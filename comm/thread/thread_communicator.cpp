#include "dtrain/base/error.h"
#include "dtrain/comm/backends.h"
#include "shared_memory/communicator.h"
#include "thread/thread_memory.h"

namespace dtrain::comm {

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size,
                                                                     const CommunicatorOptions& options) {
  if (world_size < 1) throw CommError("a world of " + std::to_string(world_size) + " ranks cannot be made");
  const auto memory = allocate_zeroed(Segment::bytes_needed(world_size));
  const auto segment = std::make_shared<Segment>(memory, memory.get(), world_size);
  const auto meeting = std::make_shared<ThreadMeeting>(world_size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<SharedMemoryCommunicator>(SharedMemorySetup{
        rank, world_size, 0, "thread", segment, std::make_unique<ThreadMemory>(meeting, rank), {}, options}));
  }
  return ranks;
}

}  // namespace dtrain::comm
