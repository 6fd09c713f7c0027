// The backend shm: shared memory between the processes of one host.
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/arena.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "shared_memory/communicator.h"
#include "shared_memory/descriptor_hub.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {
namespace {

// Maps every page now, so that the first steps have no page faults, with huge pages if the kernel allows them. Kernels
// before 5.14 refuse; then the first steps are only slower.
void populate(std::span<std::byte> memory) {
  (void)madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  (void)madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
#endif
}

struct MappedRegion final : Region {
  MappedRegion() { pages = PageKind::kShared; }
  SharedMemory memory;
};

// All ranks' parts lie in one memory, which rank 0 makes and every rank maps: an allocation needs one file descriptor
// while it is made and none afterwards.
class ShmMemory final : public Memory {
 public:
  ShmMemory(std::shared_ptr<DescriptorHub> hub, int rank, int world_size, RankNames names)
      : hub_(std::move(hub)),
        rank_(rank),
        world_size_(static_cast<std::size_t>(world_size)),
        names_(std::move(names)) {}

  std::shared_ptr<Region> allocate(std::size_t bytes, const WaitCheck& check) override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t part = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
    auto region = std::make_shared<MappedRegion>();
    region->bytes = bytes;
    region->memory = share(part * world_size_, check);
    // Each rank reserves its own part before others touch it, so the kernel takes the part from the rank's NUMA node.
    const std::size_t own = part * static_cast<std::size_t>(rank_);
    region->memory.reserve(own, part);
    populate(region->memory.bytes().subspan(own, part));
    hub_->meet(check);
    populate(region->memory.bytes());
    region->memory.close_descriptor();
    for (std::size_t r = 0; r < world_size_; ++r) region->bases.push_back(region->memory.data() + r * part);
    return region;
  }

  std::shared_ptr<Region> allocate_common(std::size_t bytes, const WaitCheck& check) override {
    auto region = std::make_shared<MappedRegion>();
    region->bytes = bytes;
    region->memory = share(std::max<std::size_t>(bytes, 1), check);
    // Each rank reserves the part that it updates (part_of(), up to a page), which then lies on its NUMA node.
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto begin_of = [&](std::size_t rank) {
      const std::size_t size = region->memory.size();
      return rank == world_size_ ? size : size / world_size_ * rank / page * page;
    };
    const std::size_t begin = begin_of(static_cast<std::size_t>(rank_));
    const std::size_t own = begin_of(static_cast<std::size_t>(rank_) + 1) - begin;
    if (own > 0) {
      region->memory.reserve(begin, own);
      populate(region->memory.bytes().subspan(begin, own));
    }
    hub_->meet(check);
    populate(region->memory.bytes());
    region->memory.close_descriptor();
    region->bases.push_back(region->memory.data());
    return region;
  }

 private:
  // Makes and shares memory, of which nothing is reserved yet.
  SharedMemory share(std::size_t bytes, const WaitCheck& check) {
    SharedMemory made;
    if (rank_ == 0) made = SharedMemory::create_unreserved("dtrain-buffer", bytes);
    return share_made(std::move(made), bytes, *hub_, names_, check);
  }

  std::shared_ptr<DescriptorHub> hub_;
  const int rank_;
  const std::size_t world_size_;
  const RankNames names_;
};

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(ControlPlane& control, const CommunicatorOptions& options,
                                                    const std::vector<int>& members) {
  const World& world = control.world();
  const WaitCheck check = setup_check(control, options, "the shm communicator");
  const RankNames names{members};
  const auto hub = std::make_shared<DescriptorHub>(control, check, names, options.arena ? options.arena->id() : "");
  const std::size_t bytes = Segment::bytes_needed(world.size);
  SharedMemory made;
  if (world.rank == 0) {
    made = SharedMemory::create_unreserved("dtrain-comm", bytes);
    made.reserve(0, Segment::staging_offset(0, world.size));
  }
  const auto memory = std::make_shared<SharedMemory>(share_made(std::move(made), bytes, *hub, names, check));
  // Many communicators exchange nothing that is staged, so the descriptor stays open until one does.
  const auto take_staging = [memory, begin = Segment::staging_offset(world.rank, world.size)] {
    memory->reserve(begin, 2 * kStagingHalf);
    memory->close_descriptor();
  };
  const auto segment = std::make_shared<Segment>(memory, memory->data(), world.size);
  auto communicator = std::make_unique<SharedMemoryCommunicator>(SharedMemorySetup{
      world.rank, world.size, control.generation(), "shm", segment,
      std::make_unique<ShmMemory>(hub, world.rank, world.size, names),
      [&control](int rank) { return std::string(name_of(control.peer_state(rank))); }, options, names, take_staging});
  // The callback may outlive the communicator, but not its memory.
  control.on_failure([weak = std::weak_ptr<Segment>(segment)](const RankFailure& failure) {
    if (const auto alive = weak.lock()) alive->abort(failure_text(failure));
  });
  return communicator;
}

std::unique_ptr<Communicator> ShmBackend::make(const BackendParts& parts) const {
  return make_shm_communicator(parts.control, parts.options, parts.members);
}

}  // namespace dtrain::comm
