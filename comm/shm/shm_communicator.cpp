#include <sys/mman.h>

#include "dtrain/base/error.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/backends.h"
#include "engine/engine.h"
#include "shm/descriptor_hub.h"

namespace dtrain::comm {
namespace {

// Maps every page now, so that the first steps do not pay for page faults, huge ones where the kernel may give some.
// Kernels before 5.14 refuse; that costs time later, nothing else.
void populate(const SharedMemory& memory) {
  (void)madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  (void)madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
#endif
}

struct MappedRegion final : Region {
  void add(const std::string& rank, SharedMemory part) {
    if (part.size() < bytes) {
      throw CommError(rank + " gave " + std::to_string(part.size()) + " bytes of memory where " +
                      std::to_string(bytes) + " are due");
    }
    populate(part);
    bases.push_back(part.data());
    parts.push_back(std::move(part));
  }
  std::vector<SharedMemory> parts;
};

class ShmMemory final : public Memory {
 public:
  ShmMemory(std::shared_ptr<DescriptorHub> hub, int rank, int world_size, RankNames names)
      : hub_(std::move(hub)), rank_(rank), world_size_(world_size), names_(std::move(names)) {}

  std::shared_ptr<Region> allocate(std::size_t bytes, const std::function<void()>& check) override {
    auto region = std::make_shared<MappedRegion>();
    region->bytes = bytes;
    SharedMemory own = create(bytes);
    std::vector<UniqueFd> fds = hub_->exchange(own.fd(), check);
    for (int r = 0; r < world_size_; ++r) {
      region->add(names_.of(r),
                  // NOLINTNEXTLINE(bugprone-use-after-move): r is rank_ once
                  r == rank_ ? std::move(own) : SharedMemory::map(std::move(fds[static_cast<std::size_t>(r)])));
    }
    return region;
  }

  std::shared_ptr<Region> allocate_common(std::size_t bytes, const std::function<void()>& check) override {
    auto region = std::make_shared<MappedRegion>();
    region->bytes = bytes;
    SharedMemory made;
    if (rank_ == 0) made = create(bytes);
    UniqueFd fd = hub_->spread(made.fd(), check);
    region->add(names_.of(0), rank_ == 0 ? std::move(made) : SharedMemory::map(std::move(fd)));
    return region;
  }

 private:
  static SharedMemory create(std::size_t bytes) {
    return SharedMemory::create("dtrain-buffer", std::max<std::size_t>(bytes, 1));
  }

  std::shared_ptr<DescriptorHub> hub_;
  const int rank_;
  const int world_size_;
  const RankNames names_;
};

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(ControlPlane& control, const CommunicatorOptions& options,
                                                    const std::vector<int>& members) {
  const World& world = control.world();
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  const auto check = [&] {
    if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
    if (std::chrono::steady_clock::now() > deadline) {
      throw CommError("the shm communicator could not be set up in time: not every rank came");
    }
  };
  const RankNames names{members};
  const auto hub = std::make_shared<DescriptorHub>(control, check, names);
  SharedMemory made;
  if (world.rank == 0) made = SharedMemory::create("dtrain-comm", Segment::bytes_needed(world.size));
  const auto memory = std::make_shared<SharedMemory>(SharedMemory::map(hub->spread(made.fd(), check)));
  const auto segment = std::make_shared<Segment>(memory, memory->data(), world.size);
  auto engine = std::make_unique<Engine>(
      EngineSetup{world.rank, world.size, control.generation(), "shm", segment,
                  std::make_unique<ShmMemory>(hub, world.rank, world.size, names),
                  [&control](int rank) { return std::string(name_of(control.peer_state(rank))); }, options, names});
  // The callback may outlive the communicator, but not its memory.
  control.on_failure([weak = std::weak_ptr<Segment>(segment)](const RankFailure& failure) {
    if (const auto alive = weak.lock()) alive->abort(failure_text(failure));
  });
  return engine;
}

}  // namespace dtrain::comm
