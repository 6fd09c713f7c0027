#include "shared_memory/communicator.h"

#include <unistd.h>

#include <utility>

#include "collective/descriptor.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kReportedStaging = 1u << 20;  // payloads for which copying matters
constexpr std::uint64_t kSmallStepsPerWake = kRingSlots / 4;

CommunicatorOptions with_log(CommunicatorOptions options) {
  if (!options.log) options.log = make_null_logger();
  return options;
}

}  // namespace

SharedMemoryCommunicator::SharedMemoryCommunicator(SharedMemorySetup setup)
    : setup_(std::move(setup)),
      rank_(setup_.rank),
      world_size_(setup_.world_size),
      segment_(setup_.segment),
      own_(segment_->rank(rank_)),
      buffers_(std::make_shared<BufferTable>(rank_, world_size_, setup_.names, setup_.options.arena)),
      scratch_(world_size_),
      reached_(static_cast<std::size_t>(world_size_), 0) {
  setup_.options = with_log(std::move(setup_.options));
  // If ranks outnumber cores, spinning takes the core from the rank that is waited for.
  if (sysconf(_SC_NPROCESSORS_ONLN) >= world_size_) spin_ = std::chrono::microseconds(20);
}

SharedMemoryCommunicator::~SharedMemoryCommunicator() {
  closing_ = true;
  try {
    if (!pending_.empty() && !segment_->aborted()) advance();
  } catch (const std::exception& error) {
    // No exception may leave a destructor: an operation that cannot be completed fails for the remaining handles. Its
    // Buffer was destroyed first, as when an exception unwinds the stack, or the peers entered another operation.
    give_up(error.what());
  }
  // There is no abort here: if a failure made this rank close, the control plane reports the more precise cause. Peers
  // that wait for this rank in vain give up by themselves (waiting.cpp).
  own_.closed.store(1);
  segment_->wake_others(rank_);
  give_up(rank_name(rank_) + " has closed its communicator");
}

bool SharedMemoryCommunicator::has_entered(int rank, std::uint64_t sequence) const {
  return segment_->rank(rank).slot(sequence).ready.load(std::memory_order_acquire) > sequence;
}

bool SharedMemoryCommunicator::all_reached(std::uint64_t phase) {
  if (phase == 0) return true;
  for (int r = 0; r < world_size_; ++r) {
    std::uint64_t& seen = reached_[static_cast<std::size_t>(r)];
    if (seen >= phase) continue;
    seen = segment_->rank(r).phase.load(std::memory_order_acquire);
    if (seen < phase) return false;
  }
  return true;
}

void SharedMemoryCommunicator::check_same(const Operation& operation) {
  const std::uint64_t sequence = operation.sequence();
  const auto theirs = [&](int r) -> const Signature& { return segment_->rank(r).slot(sequence).signature; };
  bool same = true;
  for (int r = 0; r < world_size_; ++r) same = same && same_operation(theirs(r), operation.descriptor());
  if (same) return;
  std::string text = "the ranks entered different operations as their operation " + std::to_string(sequence) + ": " +
                     rank_name(0) + " " + describe(theirs(0));
  int shown = 0;
  for (int r = 1; r < world_size_ && shown < 4; ++r) {
    if (same_operation(theirs(r), theirs(0))) continue;
    text += ", " + rank_name(r) + " " + describe(theirs(r));
    ++shown;
  }
  fail(operation, text);
}

// Plans in the order of issue: an operation begins at the phase at which the previous operation ends. Every rank plans
// from the same announcements, so all compute the same phases without further messages.
bool SharedMemoryCommunicator::plan(Operation& operation) {
  Transfer& transfer = operation.transfer_;
  if (transfer.planned()) return true;
  while (operation.entered_ < world_size_ && has_entered(operation.entered_, operation.sequence())) {
    ++operation.entered_;
  }
  if (operation.entered_ < world_size_) return false;
  check_same(operation);
  try {
    transfer.plan(*segment_, *buffers_, planned_phase_);
  } catch (const CommError& error) {
    fail(operation, describe(operation.descriptor()) + ", operation " + std::to_string(operation.sequence()) + ": " +
                        error.what());
  }
  if (transfer.staged_here()) take_staging(operation);
  report_staging(transfer);
  planned_phase_ = transfer.end_phase();
  slot_phase_[operation.sequence() % kRingSlots] = planned_phase_;
  return true;
}

// No peer touches this rank's staging area before this rank has done a step of the operation that is planned.
void SharedMemoryCommunicator::take_staging(const Operation& operation) {
  if (!setup_.take_staging) return;
  try {
    std::exchange(setup_.take_staging, nullptr)();
  } catch (const std::exception& error) {
    fail(operation, rank_name(rank_) + " cannot stage its data: " + dtrain::describe(error));
  }
}

void SharedMemoryCommunicator::report_staging(const Transfer& transfer) {
  if (staging_reported_ || transfer.payload() < kReportedStaging || !reduces(transfer.descriptor().kind) ||
      !transfer.staged_here() || transfer.staged_by_choice()) {
    return;
  }
  staging_reported_ = true;
  setup_.options.log->info(
      "{}: {} is staged, which takes two to four times as long: its memory is not the communicator's "
      "(Communicator::allocate); later ones are not reported",
      rank_name(rank_), describe(transfer.descriptor()));
}

void SharedMemoryCommunicator::note_time(const Operation& operation) {
  const Transfer& transfer = operation.transfer_;
  const bool registered = transfer.is_direct() && transfer.is_registered();
  if (operation.descriptor().kind != Kind::kAllReduce || (!registered && !transfer.staged_by_choice())) return;
  if (!staging_.took(transfer.in_bytes(), transfer.staged_by_choice(), operation.worked_)) return;
  setup_.options.log->debug("{}: all-reduces of registered memory {}", rank_name(rank_),
                            staging_.stages() ? "are staged, which is faster here" : "are direct");
}

void SharedMemoryCommunicator::run_step(Operation& operation) {
  if (operation.transfer_.is_inline()) return run_small(operation);
  const Nanoseconds began = now();
  if (operation.transfer_.at_start()) operation.timing_.started = began;
  operation.transfer_.run_step(*segment_, scratch_);
  own_.phase.store(own_.phase.load(std::memory_order_relaxed) + 1);
  segment_->wake_others(rank_);
  const Nanoseconds took = now() - began;
  operation.timing_.exposed += took;
  operation.worked_ += took;
  worked_ += took;
}

// Reading the clock, a fence and the peers' cache lines would take a good part of a small operation, so most skip them.
void SharedMemoryCommunicator::run_small(Operation& operation) {
  operation.timing_.started = small_now();
  operation.transfer_.run_step(*segment_, scratch_);
  const std::uint64_t phase = own_.phase.load(std::memory_order_relaxed) + 1;
  own_.phase.store(phase, std::memory_order_release);
  // Only a rank that is a whole ring ahead waits for just this step. It is woken at every kSmallStepsPerWake-th step,
  // and looks again after a few milliseconds in any case (waiting.cpp).
  if (phase % kSmallStepsPerWake != 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  segment_->wake_others(rank_);
}

// Steps of different operations never mix on one rank: a later operation runs only after this rank's last step of the
// one before, because phases count steps over all operations. Completion also needs the peers, hence the second pass.
bool SharedMemoryCommunicator::advance() {
  bool moved = false;
  while (running_ < pending_.size()) {
    Operation& operation = *pending_[running_];
    if (!plan(operation)) break;
    while (operation.transfer_.has_step() && all_reached(operation.transfer_.required_phase())) {
      run_step(operation);
      moved = true;
    }
    if (operation.transfer_.has_step()) break;
    ++running_;
  }
  finish_completed(moved);
  return moved;
}

void SharedMemoryCommunicator::finish_completed(bool& moved) {
  while (running_ > 0 && all_reached(pending_.front()->transfer_.required_phase())) {
    Operation& operation = *pending_.front();
    operation.timing_.ended = now();
    operation.complete_ = true;
    if (!staging_.decided() && !operation.scratch_) note_time(operation);
    release_memory(operation);
    if (operation.transfer_.is_inline()) spare_ = std::move(pending_.front());
    pending_.pop_front();
    --running_;
    moved = true;
  }
}

void SharedMemoryCommunicator::release_memory(Operation& operation) {
  operation.pins_.release();
  if (!operation.scratch_) return;
  operation.transfer_.take_result();
  setup_.options.arena->free(std::exchange(operation.scratch_, nullptr));
}

void SharedMemoryCommunicator::progress() {
  if (segment_->aborted()) throw_if_aborted();
  if (pending_.empty()) return;
  now();
  advance();
}

}  // namespace dtrain::comm
