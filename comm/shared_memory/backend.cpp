// The backend shm: shared memory between the processes of one host.
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "shared_memory/communicator.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {
namespace {

// Hands file descriptors to the ranks of one host, and lets these ranks meet. Each rank has a UNIX socket to rank 0,
// which sends a few file descriptors at a time: the kernel limits the number in flight for a user. One thread at a
// time.
class DescriptorHub {
 public:
  // Collective. If the ranks are on different hosts, a CommError names them. `check`, also below: see WaitCheck.
  DescriptorHub(ControlPlane& control, const WaitCheck& check, RankNames names);

  // Collective: gives rank 0's file descriptor to the other ranks; on rank 0 the result is empty.
  UniqueFd spread(int fd, const WaitCheck& check);
  // Collective: returns once every rank has called it.
  void meet(const WaitCheck& check);

 private:
  void join(UnixListener& listener, const WaitCheck& check);
  // Returns the next message of a rank (rank 0 receives from any, the others from rank 0), which must be `expected`.
  UnixMessage receive_from(int rank, const char* expected, const WaitCheck& check);
  void send_to(int rank, const char* text, std::span<const int> fds = {});
  std::string name_and_state(int rank) const;

  ControlPlane& control_;
  const RankNames names_;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<UnixSocket> sockets_;  // rank 0: by rank; others: element 0, to rank 0
};

constexpr std::chrono::milliseconds kHubTick{20};
constexpr int kInFlight = 16;  // file descriptors that have not been received yet
constexpr const char* kDescriptor = "this";
constexpr const char* kReceived = "received";
constexpr const char* kHere = "here";
constexpr const char* kAllHere = "all here";

int parse_rank(const std::string& text, int world_size) {
  const int rank = to_number<int>(text).value_or(-1);
  return rank >= 1 && rank < world_size ? rank : -1;
}

DescriptorHub::DescriptorHub(ControlPlane& control, const WaitCheck& check, RankNames names)
    : control_(control),
      names_(std::move(names)),
      rank_(control.world().rank),
      world_size_(control.world().size),
      sockets_(rank_ == 0 ? static_cast<std::size_t>(world_size_) : 1) {
  std::optional<UnixListener> listener;
  if (rank_ == 0) listener = UnixListener::create("comm");
  const auto hosts = control.gather(
      "comm/shm", to_line({{"host", control.world().host}, {"socket", listener ? listener->name() : std::string()}}));
  const Json first = Json::parse(hosts[0]);
  for (std::size_t r = 1; r < hosts.size(); ++r) {
    const Json other = Json::parse(hosts[r]);
    if (other["host"] == first["host"]) continue;
    throw CommError("the shm backend needs all ranks on one host, but rank 0 is on '" +
                    first["host"].get<std::string>() + "' and rank " + std::to_string(r) + " on '" +
                    other["host"].get<std::string>() + "'");
  }
  if (rank_ == 0) {
    join(*listener, check);
    return;
  }
  sockets_[0] = UnixSocket::connect(first["socket"].get<std::string>(), std::chrono::seconds(10),
                                    [&] { check([this] { return name_and_state(0); }); });
  sockets_[0].send(std::to_string(rank_));
}

void DescriptorHub::join(UnixListener& listener, const WaitCheck& check) {
  const auto missing = [this] {
    std::string text;
    for (int r = 1; r < world_size_; ++r) {
      if (!sockets_[static_cast<std::size_t>(r)]) text += (text.empty() ? "" : ", ") + name_and_state(r);
    }
    return text;
  };
  std::vector<UnixSocket> strangers;  // connected, but have not sent their hello
  for (int joined = 1; joined < world_size_;) {
    check(missing);
    const auto tick = strangers.empty() ? kHubTick : std::chrono::milliseconds(1);
    if (auto peer = listener.accept(tick)) strangers.push_back(std::move(*peer));
    for (UnixSocket& stranger : strangers) {
      bool timed_out = false;
      const auto hello = stranger.receive(std::chrono::milliseconds(0), &timed_out);
      if (timed_out) continue;
      const int rank = hello ? parse_rank(hello->data, world_size_) : -1;
      if (rank >= 0 && !sockets_[static_cast<std::size_t>(rank)]) {
        sockets_[static_cast<std::size_t>(rank)] = std::move(stranger);
        ++joined;
      } else {
        stranger.close();  // not a rank of this communicator
      }
    }
    std::erase_if(strangers, [](const UnixSocket& stranger) { return !stranger; });
  }
}

std::string DescriptorHub::name_and_state(int rank) const {
  return names_.of(rank) + " (" + std::string(name_of(control_.peer_state(rank))) + ")";
}

UnixMessage DescriptorHub::receive_from(int rank, const char* expected, const WaitCheck& check) {
  UnixSocket& socket = sockets_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0];
  const auto missing = [&] {
    return rank_ == 0 ? name_and_state(rank) : name_and_state(0) + ", or a rank that it waits for";
  };
  for (;;) {
    bool timed_out = false;
    if (auto message = socket.receive(kHubTick, &timed_out)) {
      if (message->data == expected) return std::move(*message);
      throw CommError(names_.of(rank) + " sent '" + message->data.substr(0, 40) + "' where '" + expected +
                      "' is due while memory was exchanged");
    }
    check(missing);
    // The control plane is about to report the cause, which this socket does not know.
    if (!timed_out) throw CommError(names_.of(rank) + " closed its socket while memory was exchanged");
  }
}

void DescriptorHub::send_to(int rank, const char* text, std::span<const int> fds) {
  // The wait for a peer notices that it is gone, so send() need not report it.
  sockets_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0].send(text, fds);
}

UniqueFd DescriptorHub::spread(int fd, const WaitCheck& check) {
  if (rank_ != 0) {
    UnixMessage message = receive_from(0, kDescriptor, check);
    if (message.fds.size() != 1) throw CommError(names_.of(0) + " sent no descriptor of its memory");
    send_to(0, kReceived);
    return std::move(message.fds[0]);
  }
  for (int r = 1; r < world_size_ + kInFlight; ++r) {
    if (r < world_size_) send_to(r, kDescriptor, {&fd, 1});
    if (const int earlier = r - kInFlight; earlier >= 1) receive_from(earlier, kReceived, check);
  }
  return {};
}

void DescriptorHub::meet(const WaitCheck& check) {
  if (rank_ != 0) {
    send_to(0, kHere);
    receive_from(0, kAllHere, check);
    return;
  }
  for (int r = 1; r < world_size_; ++r) receive_from(r, kHere, check);
  for (int r = 1; r < world_size_; ++r) send_to(r, kAllHere);
}

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

// Returns the memory that rank 0 made, on every rank.
SharedMemory share_made(SharedMemory made, std::size_t bytes, DescriptorHub& hub, const RankNames& names,
                        const WaitCheck& check) {
  UniqueFd fd = hub.spread(made.fd(), check);
  if (fd) made = SharedMemory::map(std::move(fd));
  if (made.size() < bytes) {
    throw CommError(names.of(0) + " gave " + std::to_string(made.size()) + " bytes of memory where " +
                    std::to_string(bytes) + " are due");
  }
  return made;
}

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
  // Rank 0 can name the missing ranks, so it reports first.
  const auto deadline = std::chrono::steady_clock::now() + options.timeout +
                        (world.rank == 0 ? std::chrono::milliseconds(0) : kRankZeroHeadStart);
  const auto check = [&](const std::function<std::string()>& missing) {
    if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
    if (std::chrono::steady_clock::now() > deadline) {
      throw TimedOut("the shm communicator could not be set up within " + format_duration(options.timeout) +
                     "; missing: " + missing());
    }
  };
  const RankNames names{members};
  const auto hub = std::make_shared<DescriptorHub>(control, check, names);
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
