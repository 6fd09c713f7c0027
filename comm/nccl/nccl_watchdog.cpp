// The waits for operations, the watchdog, and the errors that name the ranks that are missing or differ.
//
// NCCL does not compare the operations of the ranks: calls that differ make it hang or mix up data. So:
//   the first operations and every allocation are compared with rank 0's before they reach NCCL: a rank that differs
//   stops, with both in its error, and its failure stops the others through the control plane;
//   at a time-out each rank that waits publishes what it entered last, and reads what the others published.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

// Returns the time between two looks of the watchdog.
std::chrono::milliseconds period_of(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 20, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
}

constexpr std::size_t kRemembered = 64;
constexpr std::chrono::milliseconds kSlice{20};  // time until an abort is noticed
// Bounds of the time by which the others may time out later than this rank and still be counted.
constexpr std::chrono::milliseconds kLeastGrace{200};
constexpr std::chrono::milliseconds kMostGrace{3'000};

constexpr Nanoseconds kEager = std::chrono::microseconds(50);  // asks again at once for so long
constexpr std::chrono::microseconds kNap{50};                  // then this often

}  // namespace

NcclWatchdog::NcclWatchdog(SharedNcclApi api, int device, std::chrono::milliseconds timeout, Expired expired)
    : api_(std::move(api)),
      device_(device),
      timeout_(timeout),
      expired_(std::move(expired)),
      thread_(start_thread("NCCL's watchdog", [this] { run(); })) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::watch(const NcclEntry& entry, const CudaEvent* began, const CudaEvent& done) {
  const std::scoped_lock lock(mutex_);
  watched_ = {entry, began, &done, std::nullopt};
}

void NcclWatchdog::watch_nothing() {
  const std::scoped_lock lock(mutex_);
  watched_.reset();
}

std::optional<NcclWatchdog::Watched> NcclWatchdog::look() {
  if (!watched_) return std::nullopt;
  if (!watched_->since) {
    if (!watched_->began || watched_->began->query()) watched_->since = clock_.monotonic();
    return std::nullopt;
  }
  if (clock_.monotonic() - *watched_->since < Nanoseconds(timeout_) || watched_->done->query()) return std::nullopt;
  return std::exchange(watched_, std::nullopt);
}

void NcclWatchdog::run() {
  static_cast<void>(api_->cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::optional<Watched> expired;
    try {
      expired = look();
    } catch (const CommError&) {
      watched_.reset();  // the device has failed, which its owner finds out too
    }
    if (expired) {
      lock.unlock();
      expired_(expired->entry, *expired->since);
      lock.lock();
      continue;
    }
    changed_.wait_for(lock, period_of(timeout_), [this] { return ending_; });
  }
}

void NcclCore::wait_for(NcclWork& work) {
  if (!work.submitted_) throw CommError(describe(work.descriptor_) + " belongs to a group that is open");
  if (capture_) {
    throw CommError(describe(work.descriptor_) + ": nothing can be waited for while a CUDA graph is captured");
  }
  const Nanoseconds began = now();
  const Nanoseconds deadline = began + setup_.options.timeout;
  bool warned = false;
  for (;;) {
    pump();
    if (work.complete_) break;
    throw_if_failed(&work, began);
    const Nanoseconds time = now();
    if (time >= deadline) {
      time_out(work, began);
      throw_if_failed(&work, began);
    }
    if (!warned && time - began >= Nanoseconds(setup_.options.warn_after)) {
      warned = true;
      setup_.options.log->warn("rank {}: {}", rank(),
                               describe_waiting({work.descriptor_, nullptr}, time - began, "has waited for"));
    }
    if (time - began < kEager) continue;
    nap();
  }
  work.timing_.exposed += now() - began;
}

void NcclCore::nap() {
  std::unique_lock lock(mutex_);
  failed_now_.wait_for(lock, kNap, [&] { return failed(); });
}

void NcclCore::time_out(const NcclWork& work, Nanoseconds since) {
  const NcclEntry entry{work.descriptor_, nullptr};
  // Batches end in order: the ranks that the first one waits for are the missing ones.
  time_out(entry, since, batches_.empty() ? entry : batches_.front().first);
}

void NcclCore::expire(const NcclEntry& entry, Nanoseconds began) {
  if (!failed()) time_out(entry, began, entry);
}

void NcclCore::time_out(const NcclEntry& entry, Nanoseconds since, const NcclEntry& first) {
  std::string text =
      "rank " + std::to_string(rank()) + ": " + describe_waiting(entry, now() - since, "timed out after");
  if (first.descriptor.sequence != entry.descriptor.sequence) {
    text += " behind " + describe(first) + ", operation " + std::to_string(first.descriptor.sequence);
  }
  try {
    text += "; " + describe_others(first);
  } catch (const CommError& error) {  // the run has failed while this rank asked
    text += "; " + std::string(error.what());
  }
  fail(text, true);
}

std::string NcclCore::describe_waiting(const NcclEntry& entry, Nanoseconds elapsed, const char* verb) const {
  return describe(entry) + ", operation " + std::to_string(entry.descriptor.sequence) + ", " + verb + " " +
         format_duration(elapsed);
}

void NcclCore::remember(const NcclEntry& entry) {
  const std::scoped_lock lock(mutex_);
  last_.push_back(entry);
  if (last_.size() > kRemembered) last_.pop_front();
}

void NcclCore::compare_with_first(const std::vector<Descriptor>& descriptors) {
  if (world_size() == 1) return;
  const Nanoseconds began = now();
  for (const Descriptor& own : descriptors) {
    const std::string text = describe(own);
    const std::string key = setup_.nccl.name + "/operation/" + std::to_string(own.sequence);
    if (rank() == 0) {
      setup_.control.set(key, text);
      continue;
    }
    std::optional<std::string> first;
    while (!first) {
      try {
        first = setup_.control.get_within(key, kSlice);
      } catch (const CommError& error) {
        fail(error.what(), false);
      }
      throw_if_failed();
      if (first || now() - began < Nanoseconds(setup_.options.timeout)) continue;
      fail("rank " + std::to_string(rank()) + ": " +
               describe_waiting({own, nullptr}, now() - began, "timed out after") +
               "; missing: rank 0 has not entered it (" + std::string(name_of(setup_.control.peer_state(0))) + ")",
           true);
    }
    if (*first == text) continue;
    fail("the ranks entered different operations as their operation " + std::to_string(own.sequence) + ": rank 0 " +
             *first + ", rank " + std::to_string(rank()) + " " + text,
         true);
    throw_if_failed();
  }
}

std::string NcclCore::describe_others(const NcclEntry& waited_for) {
  using Json = nlohmann::json;
  const auto key = [&](int r) { return setup_.nccl.name + "/stopped/" + std::to_string(r); };
  Json mine = Json::object();
  std::uint64_t issued = 0;
  {
    const std::scoped_lock lock(mutex_);
    for (const NcclEntry& entry : last_) mine[std::to_string(entry.descriptor.sequence)] = describe(entry);
    if (!last_.empty()) issued = last_.back().descriptor.sequence + 1;
  }
  setup_.control.set(key(rank()), Json{{"issued", issued}, {"last", mine}}.dump());

  const auto grace = std::clamp(setup_.options.timeout / 2, kLeastGrace, kMostGrace);
  const Nanoseconds until = now() + Nanoseconds(grace);
  const std::string sequence = std::to_string(waited_for.descriptor.sequence);
  const std::string own = describe(waited_for);
  std::string missing, different;
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now());
    const auto published = setup_.control.get_within(key(r), std::max(left, std::chrono::milliseconds(1)));
    const std::string name = "rank " + std::to_string(r);
    const std::string state = " (" + std::string(name_of(setup_.control.peer_state(r))) + ")";
    if (!published) {
      missing += (missing.empty() ? "" : "; ") + name + " is not waiting for it" + state;
      continue;
    }
    const Json theirs = Json::parse(*published, nullptr, false);
    if (!theirs.is_object() || !theirs.contains("last") || !theirs["last"].is_object()) continue;
    const auto entered = theirs["last"].find(sequence);
    if (entered != theirs["last"].end() && entered->is_string()) {
      if (const auto text = entered->get<std::string>(); text != own) different += ", " + name + " " + text;
    } else if (theirs.value("issued", std::uint64_t{0}) <= waited_for.descriptor.sequence) {
      missing += (missing.empty() ? "" : "; ") + name + " has not entered it" + state;
    }
  }
  std::string text;
  if (!different.empty()) {
    text = "the ranks entered different operations as their operation " + sequence + ": rank " +
           std::to_string(rank()) + " " + own + different;
  }
  if (!missing.empty()) text += (text.empty() ? "missing: " : "; missing: ") + missing;
  return text.empty() ? "every rank has entered it, and NCCL does not finish it" : text;
}

}  // namespace dtrain::comm
