// Waits for operations, and makes the errors of those that fail.
#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

constexpr Nanoseconds kEager = std::chrono::microseconds(50);  // asks again at once for so long
constexpr std::chrono::microseconds kNap{50};                  // then this often

}  // namespace

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
  std::string text = describe_waiting(entry, now() - since, "timed out after");
  // Batches end in order: the ranks that the first one waits for are the missing ones.
  const NcclEntry first = batches_.empty() ? entry : batches_.front().first;
  if (first.descriptor.sequence != entry.descriptor.sequence) {
    text += " behind " + describe(first) + ", operation " + std::to_string(first.descriptor.sequence);
  }
  text = "rank " + std::to_string(rank()) + ": " + text;
  try {
    text += "; " + describe_others(first);
  } catch (const CommError& error) {  // the run has failed while this rank asked
    text += "; " + std::string(error.what());
  }
  fail(text, true);
}

void NcclCore::expire(const NcclEntry& entry, Nanoseconds began) {
  if (failed()) return;
  std::string text =
      "rank " + std::to_string(rank()) + ": " + describe_waiting(entry, now() - began, "timed out after");
  try {
    text += "; " + describe_others(entry);
  } catch (const CommError& error) {
    text += "; " + std::string(error.what());
  }
  fail(text, true);
}

std::string NcclCore::describe_waiting(const NcclEntry& entry, Nanoseconds elapsed, const char* verb) const {
  return describe(entry) + ", operation " + std::to_string(entry.descriptor.sequence) + ", " + verb + " " +
         format_duration(elapsed);
}

}  // namespace dtrain::comm
