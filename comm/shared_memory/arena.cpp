// The arenas of the ranks of one host: parts of one sparse memory, each with a pool of its rank.
#include "dtrain/comm/arena.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include <sys/mman.h>

#include "collective/pages.h"
#include "control/subgroup.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/text.h"
#include "hierarchical/topology.h"
#include "shared_memory/arena_pool.h"
#include "shared_memory/descriptor_hub.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kLeastArena = 64u << 20;
constexpr std::size_t kMostMapped = std::size_t{16} << 40;  // of the 128 TB that a process can address
constexpr std::size_t kArenaUnit = 2u << 20;                // a huge page
constexpr std::size_t kIdBytes = 16;

// Returns how many times fork() led from the first process to this one, since the first call.
unsigned forks() {
  static std::atomic<unsigned> count{0};
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  static_cast<void>(registered);
  return count.load(std::memory_order_relaxed);
}

class HostArena final : public Arena {
 public:
  // Rank members[i] of the run has the i-th of the equal parts of `memory`; `own` is the index of this rank.
  HostArena(SharedMemory memory, std::size_t part, std::vector<int> members, std::size_t own, std::string id)
      : memory_(std::move(memory)),
        part_(part),
        members_(std::move(members)),
        id_(std::move(id)),
        own_(memory_.bytes().subspan(own * part, part)),
        forks_(forks()),
        pool_(
            part, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
            [this](const Extent& pages) {
              return release_pages(own_.subspan(pages.begin, pages.size()), PageKind::kShared) == pages.size();
            },
            clock_) {
    static_cast<void>(::madvise(memory_.data(), memory_.size(), MADV_DONTDUMP));
  }

  void* allocate(std::size_t bytes) override {
    if (is_own_process()) {
      if (const auto offset = pool_.allocate(bytes)) return own_.data() + *offset;
    }
    void* memory = nullptr;
    if (::posix_memalign(&memory, ArenaPool::kGranule, std::max<std::size_t>(bytes, 1)) != 0) throw std::bad_alloc();
    return memory;
  }

  void free(void* data) override {
    if (!contains(data, 0)) return std::free(data);
    if (is_own_process() && !pool_.free(offset_of(data))) {
      throw CommError("memory of the arena was freed that is not in use: it was freed before, or never allocated");
    }
  }

  bool contains(const void* data, std::size_t bytes) const override {
    const std::size_t offset = offset_of(data);
    return offset < part_ && bytes <= part_ - offset;
  }

  ArenaStatistics statistics() const override { return is_own_process() ? pool_.statistics() : ArenaStatistics{}; }

  bool is_pinned(const void* data) const override {
    return is_own_process() && contains(data, 1) && pool_.is_pinned(offset_of(data));
  }

  void pin(const void* data, std::size_t bytes) override {
    if (!is_own_process() || pool_.pin(offset_of(data), bytes)) return;
    throw CommError("an operation uses " + format_bytes(static_cast<double>(bytes)) +
                    " of the arena that are not part of one piece: the memory was freed, or is too small");
  }

  void unpin(const void* data) override {
    if (is_own_process()) pool_.unpin(offset_of(data));
  }

  std::span<std::byte> memory_of(int rank) const override {
    const auto found = std::ranges::find(members_, rank);
    if (found == members_.end()) return {};
    return memory_.bytes().subspan(static_cast<std::size_t>(found - members_.begin()) * part_, part_);
  }

  const std::string& id() const override { return id_; }

 private:
  // Anything but a place in the own part gives a number that is too large.
  std::size_t offset_of(const void* data) const {
    return reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(own_.data());
  }
  // False after fork(), when another thread of the parent may have held the pool's lock.
  bool is_own_process() const { return forks() == forks_; }

  const SharedMemory memory_;
  const std::size_t part_;
  const std::vector<int> members_;
  const std::string id_;
  const std::span<std::byte> own_;
  const unsigned forks_;  // when it was made
  const SystemClock clock_;
  ArenaPool pool_;
};

std::size_t memory_of_host() {
  std::uint64_t bytes =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (const MemoryLimit& limit : memory_limits(cgroups_of(0))) bytes = std::min(bytes, limit.bytes);
  return bytes;
}

// Bytes of an arena that this process can map together with those of its peers; 0: too few. `why`: what allows no more.
struct Fit {
  std::size_t bytes = 0;
  std::string why;
};

// Half of the addresses that a limit allows stay free for the rest of the process.
void try_mapping(std::size_t bytes) {
  const SharedMemory memory = SharedMemory::create_sparse("arena", bytes);
  void* const beside = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (beside == MAP_FAILED) throw SystemError("cannot map as much memory beside the arena", errno);
  ::munmap(beside, bytes);
}

Fit fit_of(std::size_t wanted, std::size_t ranks) {
  if (is_overcommit_strict()) return {0, "vm.overcommit_memory is 2: the kernel promises only memory that it has"};
  Fit fit{wanted, {}};
  while (fit.bytes >= kLeastArena) {
    try {
      try_mapping(fit.bytes * ranks);
      return fit;
    } catch (const SystemError& error) {
      if (fit.why.empty()) fit.why = error.what();
      fit.bytes = fit.bytes / 2 / kArenaUnit * kArenaUnit;
    }
  }
  fit.bytes = 0;
  return fit;
}

// Makes the arenas of the ranks of `control`, which are on one host.
std::shared_ptr<Arena> make_host_arena(ControlPlane& control, const CommunicatorOptions& options,
                                       const std::vector<int>& members, const std::string& id) {
  const World& world = control.world();
  const RankNames names{members};
  const std::size_t wanted = std::min(memory_of_host(), kMostMapped / members.size()) / kArenaUnit * kArenaUnit;
  const Fit own = fit_of(wanted, members.size());
  const auto fits = control.gather("comm/arena", to_line({{"bytes", own.bytes}, {"why", own.why}}));
  Fit least;
  for (std::size_t r = 0; r < fits.size(); ++r) {
    const Json fit = Json::parse(fits[r]);
    if (r != 0 && fit["bytes"].get<std::size_t>() >= least.bytes) continue;
    least = {fit["bytes"].get<std::size_t>(), fit["why"].get<std::string>()};
    if (!least.why.empty()) least.why = names.of(static_cast<int>(r)) + ": " + least.why;
  }
  if (world.rank == 0 && !least.why.empty() && options.log) {
    options.log->info("registered memory of {} for each rank in place of {}: {}",
                      format_bytes(static_cast<double>(least.bytes)), format_bytes(static_cast<double>(wanted)),
                      least.why);
  }
  if (least.bytes == 0) return nullptr;

  const WaitCheck check = setup_check(control, options, "the arena");
  DescriptorHub hub(control, check, names, id);
  const std::size_t all = least.bytes * members.size();
  SharedMemory made;
  if (world.rank == 0) made = SharedMemory::create_sparse("arena", all);
  SharedMemory memory = share_made(std::move(made), all, hub, names, check);
  memory.close_descriptor();
  return std::make_shared<HostArena>(std::move(memory), least.bytes, members, static_cast<std::size_t>(world.rank), id);
}

}  // namespace

std::shared_ptr<Arena> make_arena(ControlPlane& control, const CommunicatorOptions& options,
                                  const std::vector<int>& members) {
  const World& world = control.world();
  auto names = control.gather("comm/arena/hosts", random_hex(kIdBytes / 2) + world.host);
  const std::string id = "arena/" + names[0].substr(0, kIdBytes);
  for (std::string& name : names) name.erase(0, kIdBytes);
  const Placement placement(names);
  const std::size_t host = placement.host_of[static_cast<std::size_t>(world.rank)];
  const std::vector<int>& here = placement.hosts[host];
  const std::vector<int> numbers = numbers_in_run(here, members);
  if (placement.hosts.size() == 1) return make_host_arena(control, options, numbers, id);
  ControlSubgroup group(control, id + "/" + std::to_string(host), here);
  return make_host_arena(group, options, numbers, id);
}

}  // namespace dtrain::comm
