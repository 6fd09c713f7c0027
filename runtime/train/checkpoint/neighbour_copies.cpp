#include "checkpoint/neighbour_copies.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;

using CopyClock = std::chrono::steady_clock;

constexpr std::size_t kPieceOfCopy = 1u << 20;  // bytes
constexpr double kShareOfLink = 0.25;           // of the time in which a piece may be on its way
constexpr std::chrono::microseconds kPollCopies{500};
constexpr int kPriorityOfCopies = 10;
// A host may take long to begin, behind a validation. The control plane tells of hosts that are lost.
constexpr std::chrono::hours kNoDeadline{24 * 365};

std::size_t bytes_of_copies(const NeighbourCopies::Files& files) {
  std::size_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes;
  return bytes;
}

// Goes through files, piece by piece. A file that fails does not end the walk: both sides count the same pieces.
class FileWalk {
 public:
  FileWalk(const fs::path& folder, const NeighbourCopies::Files& files, int flags)
      : folder_(folder),
        files_(files),
        flags_(flags),
        left_(bytes_of_copies(files)),
        piece_(std::min(left_, kPieceOfCopy)) {}

  bool ended() const { return left_ == 0; }
  std::span<std::byte> piece() { return {piece_.data(), std::min(left_, kPieceOfCopy)}; }
  std::size_t left() const { return left_; }
  const std::string& problem() const { return problem_; }
  void read() { each(::pread); }
  void write() { each(::pwrite); }
  void next() { left_ -= piece().size(); }

 private:
  // `move`: pread() or pwrite().
  template <class Move>
  void each(const Move& move) {
    for (std::span<std::byte> rest = piece(); !rest.empty();) {
      while (at_ == files_[file_].bytes) at_ = 0, ++file_, fd_.reset();
      const NeighbourCopies::File& file = files_[file_];
      const std::size_t count = std::min(rest.size(), file.bytes - at_);
      if (!fd_) fd_.reset(::open((folder_ / file.name).c_str(), flags_ | O_CLOEXEC | O_NOFOLLOW, 0600));
      for (std::size_t done = 0; done < count && problem_.empty();) {
        const auto moved = move(fd_.get(), rest.data() + done, count - done, static_cast<off_t>(at_ + done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0)
          problem_ = describe(SystemError("cannot copy " + (folder_ / file.name).string(), moved < 0 ? errno : EIO));
        done += static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
      }
      at_ += count;
      rest = rest.subspan(count);
      if (at_ == file.bytes && (flags_ & O_CREAT) != 0 && problem_.empty() &&
          ::ftruncate(fd_.get(), static_cast<off_t>(at_)) != 0) {
        problem_ = describe(SystemError("cannot copy " + (folder_ / file.name).string(), errno));
      }
    }
  }

  const fs::path folder_;
  const NeighbourCopies::Files& files_;
  const int flags_;
  std::size_t left_;
  std::vector<std::byte> piece_;
  std::size_t file_ = 0, at_ = 0;
  UniqueFd fd_;
  std::string problem_;
};

}  // namespace

class NeighbourCopies::Outgoing {
 public:
  Outgoing(comm::Mailbox& mailbox, const fs::path& folder, const Files& files, int to, bool at_once)
      : mailbox_(mailbox), walk_(folder, files, O_RDONLY), to_(to), at_once_(at_once) {}

  bool ended() const { return walk_.ended(); }
  const std::string& problem() const { return walk_.problem(); }
  std::chrono::duration<double> on_the_way() const { return on_the_way_; }

  // Returns true if it got on.
  bool advance() {
    const auto now = CopyClock::now();
    if (work_) {
      if (!work_.test()) return false;
      const auto taken = CopyClock::now() - began_;
      on_the_way_ += taken;
      if (!at_once_)
        next_at_ = CopyClock::now() + std::chrono::duration_cast<CopyClock::duration>(taken * (1 / kShareOfLink - 1));
      work_ = {};
      walk_.next();
      return true;
    }
    if (now < next_at_) return false;
    walk_.read();
    began_ = CopyClock::now();
    work_ = mailbox_.send(walk_.piece().data(), walk_.piece().size(), to_, {});
    return true;
  }

 private:
  comm::Mailbox& mailbox_;
  FileWalk walk_;
  const int to_;
  const bool at_once_;
  comm::Work work_;
  CopyClock::time_point began_, next_at_;
  std::chrono::duration<double> on_the_way_{0};
};

class NeighbourCopies::Incoming {
 public:
  Incoming(comm::Mailbox& mailbox, const fs::path& folder, const Files& files, int from)
      : mailbox_(mailbox), walk_(folder, files, O_RDWR | O_CREAT), from_(from) {}

  bool ended() const { return walk_.ended(); }
  const std::string& problem() const { return walk_.problem(); }

  bool advance() {
    const bool arrived = work_ && work_.test();
    if (work_ && !arrived) return false;
    if (arrived) {
      walk_.write();
      walk_.next();
    }
    work_ = {};
    if (!walk_.ended()) work_ = mailbox_.receive(walk_.piece().data(), walk_.piece().size(), from_, {});
    return true;
  }

 private:
  comm::Mailbox& mailbox_;
  FileWalk walk_;
  const int from_;
  comm::Work work_;
};

NeighbourCopies::NeighbourCopies(rank::RankSession& session, std::vector<int> leaders, int host, int copies)
    : host_(host) {
  const auto hosts = static_cast<int>(leaders.size());
  receivers_ = checkpoints::hosts_with_copies_of(host, hosts, copies);
  for (int other = 0; other < hosts; ++other) {
    const std::vector<int> to = checkpoints::hosts_with_copies_of(other, hosts, copies);
    if (std::ranges::find(to, host) != to.end()) senders_.push_back(other);
  }
  leaders_ = comm::make_subgroup(session.control(), "train/copies-between-hosts", leaders);
  comm::CommunicatorOptions options;
  options.timeout = kNoDeadline;
  options.warn_after = kNoDeadline;
  options.log = session.log();
  options.security = session.experiment().communication_security;
  mailbox_ = comm::make_mailbox({.control = *leaders_,
                                 .members = std::move(leaders),
                                 .mpi = nullptr,
                                 .address = session.address(),
                                 .options = options});
  thread_ = std::thread([this] { run(); });
}

NeighbourCopies::~NeighbourCopies() {
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
    if (mailbox_) mailbox_->abort("training has ended");
  }
  changed_.notify_all();
  thread_.join();
}

void NeighbourCopies::start(const fs::path& folder, std::vector<Files> of_hosts, bool at_once) {
  const std::scoped_lock lock(mutex_);
  folder_ = folder;
  of_hosts_ = std::move(of_hosts);
  at_once_ = at_once;
  const bool connected = result_.connected;
  result_ = {.ended = !connected, .problem = connected ? "" : result_.problem, .connected = connected};
  has_transfer_ = connected;
  changed_.notify_all();
}

NeighbourCopies::Result NeighbourCopies::poll() const {
  const std::scoped_lock lock(mutex_);
  return result_;
}

void NeighbourCopies::run() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kPriorityOfCopies);
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || has_transfer_; });
      if (stops_) return;
      has_transfer_ = false;
    }
    try {
      carry();
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex_);
      mailbox_.reset();  // so that the other hosts do not wait
      result_.problem = describe(error);
      result_.connected = false;
      result_.ended = true;
    }
  }
}

void NeighbourCopies::carry() {
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  const Files& own = of_hosts_[static_cast<std::size_t>(host_)];
  for (const int to : receivers_) outgoing.emplace_back(*mailbox_, folder_, own, to, at_once_);
  for (const int from : senders_) {
    incoming.emplace_back(*mailbox_, folder_, of_hosts_[static_cast<std::size_t>(from)], from);
  }
  // One receiver after the other, as they share the link. All senders at once, so that none waits for another.
  for (auto next = outgoing.begin();;) {
    while (next != outgoing.end() && next->ended()) ++next;
    bool moved = next != outgoing.end() && next->advance(), awaited = false;
    for (Incoming& from : incoming) {
      if (from.ended()) continue;
      awaited = true;
      moved = from.advance() || moved;
    }
    if (next == outgoing.end() && !awaited) break;
    if (moved) continue;
    mailbox_->progress();
    std::this_thread::sleep_for(kPollCopies);
  }
  Result result;
  const auto note = [&](const auto& side) {
    if (result.problem.empty()) result.problem = side.problem();
  };
  for (const Outgoing& to : outgoing) {
    note(to);
    result.link_s += to.on_the_way().count();
    result.bytes += bytes_of_copies(own);
  }
  for (const Incoming& from : incoming) note(from);
  const std::scoped_lock lock(mutex_);
  result_ = result;
}

}  // namespace dtrain::train
