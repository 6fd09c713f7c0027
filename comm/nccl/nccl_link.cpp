#include <utility>

#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLinkNap{200};
constexpr std::chrono::seconds kEnding{5};
constexpr std::chrono::microseconds kEagerLaunch{200};  // asks again at once for so long: most launches take less
constexpr std::chrono::microseconds kLaunchNap{50};     // then this often

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

void NcclLink::wait_until_ready(ncclComm_t comm, const char* what, const NcclWaiting& waiting) {
  const auto began = SteadyClock::now();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_nccl(*api_, api_->ncclCommGetAsyncError(comm, &state), what, comm);
    check_nccl(*api_, state, what, comm);
    if (state != ncclInProgress) return;
    waiting.check();
    if (SteadyClock::now() - began > waiting.timeout) {
      throw CommError(std::string(what) + " timed out after " + format_duration(SteadyClock::now() - began) +
                      ": every rank has begun it, and NCCL does not finish it; " + waiting.who_else());
    }
    std::this_thread::sleep_for(kLinkNap);
  }
}

std::unique_ptr<NcclLink> NcclLink::once_ready(std::unique_ptr<NcclLink> link, const char* what,
                                               const NcclWaiting& waiting) {
  try {
    link->wait_until_ready(link->comm_, what, waiting);
  } catch (const CommError&) {
    link->stop();
    throw;
  }
  return link;
}

std::unique_ptr<NcclLink> NcclLink::connect(SharedNcclApi api, const ncclUniqueId& id, int rank, int world_size,
                                            const NcclWaiting& waiting) {
  constexpr const char* kWhat = "connecting the ranks with NCCL";
  std::unique_ptr<NcclLink> link(new NcclLink(std::move(api)));
  ncclConfig_t how = config();
  check_nccl(*link->api_, link->api_->ncclCommInitRankConfig(&link->comm_, world_size, id, rank, &how), kWhat);
  return once_ready(std::move(link), kWhat, waiting);
}

NcclLink::~NcclLink() {
  const std::scoped_lock lock(mutex_);
  if (!comm_) return;
  if (finalized_ && !stopped_) {
    static_cast<void>(api_->ncclCommDestroy(comm_));
  } else {
    static_cast<void>(api_->ncclCommAbort(comm_));
  }
}

bool NcclLink::ready() {
  return use([&](ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    check_nccl(*api_, api_->ncclCommGetAsyncError(comm, &state), "asking NCCL for errors", comm);
    check_nccl(*api_, state, "NCCL has failed", comm);
    return state != ncclInProgress;
  });
}

void NcclLink::stop() noexcept {
  const std::scoped_lock lock(mutex_);
  if (stopped_ || !comm_) return;
  stopped_ = true;
  if (api_->ncclCommRevoke) {
    const ncclResult_t result = api_->ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
    if (result == ncclSuccess || result == ncclInProgress) return;
  }
  static_cast<void>(api_->ncclCommAbort(std::exchange(comm_, nullptr)));
}

ncclResult_t NcclLink::await(ncclResult_t state, std::chrono::milliseconds at_most) const {
  const auto deadline = SteadyClock::now() + at_most;
  while (state == ncclInProgress && SteadyClock::now() < deadline) {
    if (api_->ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return ncclInProgress;
    if (state == ncclInProgress) std::this_thread::sleep_for(kLinkNap);
  }
  return state;
}

void NcclLink::deregister(void* handle) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!comm_) return;
  // A revocation must be over first; if it does not end, the registration ends with the communicator.
  if (await(stopped_ ? ncclInProgress : ncclSuccess, kEnding) == ncclInProgress) return;
  static_cast<void>(api_->ncclCommDeregister(comm_, handle));
}

std::unique_ptr<NcclLink> NcclLink::shrink(std::vector<int> excluded, bool failed, const NcclWaiting& waiting) {
  constexpr const char* kWhat = "shrinking the communicator with NCCL";
  const std::scoped_lock lock(mutex_);
  if (!api_->ncclCommShrink) throw CommError("this version of NCCL cannot shrink a communicator");
  if (!comm_) {
    throw CommError(std::string("the communicator cannot be shrunk: ") +
                    (stopped_ ? "this NCCL could stop it only by ending it" : "it has been closed"));
  }
  if (stopped_) wait_until_ready(comm_, kWhat, waiting);  // the revocation
  stopped_ = true;
  std::unique_ptr<NcclLink> link(new NcclLink(api_));
  ncclConfig_t how = config();
  check_nccl(*api_,
             api_->ncclCommShrink(comm_, excluded.data(), static_cast<int>(excluded.size()), &link->comm_, &how,
                                  failed ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT),
             kWhat, comm_);
  wait_until_ready(comm_, kWhat, waiting);
  return once_ready(std::move(link), kWhat, waiting);
}

void NcclLink::finalize(std::chrono::milliseconds at_most) noexcept {
  const std::scoped_lock lock(mutex_);
  if (stopped_ || !comm_) return;
  finalized_ = await(api_->ncclCommFinalize(comm_), at_most) == ncclSuccess;
}

NcclLaunchEnd::NcclLaunchEnd(SharedNcclApi api, int device, NcclLink& link)
    : api_(std::move(api)), device_(device), link_(link), thread_(start_thread("NCCL's calls", [this] { run(); })) {}

NcclLaunchEnd::~NcclLaunchEnd() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclLaunchEnd::begin(std::function<void()> behind) {
  {
    const std::scoped_lock lock(mutex_);
    behind_ = std::move(behind);
  }
  changed_.notify_all();
}

bool NcclLaunchEnd::look() {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return look_locked();
}

bool NcclLaunchEnd::look_locked() {
  if (!link_.ready()) return false;
  if (auto behind = std::exchange(behind_, {})) behind();
  return true;
}

void NcclLaunchEnd::run() {
  static_cast<void>(api_->cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || (behind_ && !error_); });
    const auto began = SteadyClock::now();
    while (!ending_ && behind_ && !error_) {
      try {
        if (look_locked()) break;
      } catch (...) {
        error_ = std::current_exception();  // the owner's next look() throws it
        break;
      }
      if (SteadyClock::now() - began < kEagerLaunch) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      } else {
        changed_.wait_for(lock, kLaunchNap, [this] { return ending_; });
      }
    }
  }
}

}  // namespace dtrain::comm
