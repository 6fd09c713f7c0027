#include "nccl/nccl_core.h"

#include <algorithm>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

struct Range {
  const std::byte* begin;
  const std::byte* end;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

constexpr std::chrono::seconds kClosing{5};
constexpr std::chrono::seconds kAfterFailure{2};

}  // namespace

Nanoseconds NcclBatch::enqueued() const {
  return works.empty() ? replayed : works.front()->timing().enqueued;
}

std::size_t NcclWork::bytes() const {
  return payload_bytes(descriptor_, core_->world_size());
}

std::size_t NcclWork::written_bytes() const {
  return out_ ? out_bytes(descriptor_, core_->world_size()) : 0;
}

bool NcclWork::test() {
  if (complete_) return true;
  const Nanoseconds began = core_->now();
  core_->pump();
  if (!complete_) core_->throw_if_failed(this, timing_.enqueued);
  timing_.exposed += core_->now() - began;
  return complete_;
}

void NcclWork::wait() {
  if (!complete_) core_->wait_for(*this);
}

void NcclWork::join() {
  if (!core_->setup_.nccl.current_stream) return wait();
  if (complete_) return;
  const Nanoseconds began = core_->now();
  core_->order_after(static_cast<cudaStream_t>(core_->setup_.nccl.current_stream()), descriptor_.sequence);
  timing_.exposed += core_->now() - began;
  if (result_area()) wait();  // the result gets to the host's memory when it is complete
}

NcclCore::NcclCore(NcclSetup setup, std::unique_ptr<NcclLink> link)
    : setup_(std::move(setup)), link_(std::move(link)), stream_(setup_.api), pool_(setup_.api) {
  check_cuda(*setup_.api, setup_.api->cudaMalloc(&barrier_data_, sizeof(float)), "allocating GPU memory");
  watchdog_ =
      std::make_unique<NcclWatchdog>(setup_.api, setup_.nccl.device, setup_.options.timeout,
                                     [this](const NcclEntry& entry, Nanoseconds began) { expire(entry, began); });
  launch_end_ = std::make_unique<NcclLaunchEnd>(setup_.api, setup_.nccl.device, *link_);
}

std::shared_ptr<NcclWork> NcclCore::issue(Descriptor descriptor, const void* in, void* out) {
  const Nanoseconds began = now();
  throw_if_failed();
  descriptor.sequence = sequence_;
  if (capture_) check_capturable(descriptor, in, out);
  ++sequence_;
  remember({descriptor, nullptr});
  auto work = std::make_shared<NcclWork>(shared_from_this(), descriptor, in, out);
  work->timing_.enqueued = began;
  if (group_open_) {
    grouped_.push_back(work);
  } else {
    submit({work});
  }
  work->timing_.exposed = now() - began;
  return work;
}

void NcclCore::agree(Descriptor descriptor) {
  if (group_open_) throw CommError(describe(descriptor) + " was called inside a group, which it cannot be part of");
  throw_if_failed();
  if (capture_) throw CommError(describe(descriptor) + " cannot be part of a CUDA graph");
  descriptor.sequence = sequence_++;
  remember({descriptor, nullptr});
  compare_with_first({descriptor});
}

void NcclCore::begin_group() {
  throw_if_failed();
  if (group_open_) throw CommError("begin_group: a group is open already, and groups do not nest");
  group_open_ = true;
}

void NcclCore::end_group() {
  if (!group_open_) throw CommError("end_group: no group is open");
  group_open_ = false;
  std::vector<Shared> works = std::exchange(grouped_, {});
  throw_if_failed();
  // NCCL orders nothing inside a group: an operation that uses memory that an earlier one writes begins a new group.
  std::vector<Shared> together;
  std::vector<Range> read, written;
  for (Shared& work : works) {
    const Range in = range(work->in_, in_bytes(work->descriptor_, world_size()));
    const Range out = range(work->out_, work->written_bytes());
    const auto hits = [](const std::vector<Range>& those, const Range& wanted) {
      return std::any_of(those.begin(), those.end(), [&](const Range& other) { return other.overlaps(wanted); });
    };
    if (hits(written, in) || hits(written, out) || hits(read, out)) {
      submit(std::exchange(together, {}));
      read.clear();
      written.clear();
    }
    read.push_back(in);
    written.push_back(out);
    together.push_back(std::move(work));
  }
  if (!together.empty()) submit(std::move(together));
}

void NcclCore::submit(std::vector<Shared> works) {
  std::vector<Descriptor> compared;
  for (const Shared& work : works) {
    work->submitted_ = true;
    if (work->descriptor_.sequence < setup_.nccl.compared_operations) compared.push_back(work->descriptor_);
  }
  if (capture_) return capture(std::move(works));
  if (!compared.empty()) compare_with_first(compared);
  NcclBatch batch;
  batch.first = {works.front()->descriptor_, nullptr};
  batch.works = std::move(works);
  if (setup_.nccl.current_stream) {
    const DeviceGuard guard(*setup_.api, setup_.nccl.device);
    batch.ready = pool_.event();
    batch.ready->record(static_cast<cudaStream_t>(setup_.nccl.current_stream()));
  }
  batches_.push_back(std::move(batch));
  pump();
  throw_if_failed();
}

void NcclCore::progress() {
  if (!batches_.empty()) pump();
  throw_if_failed();
}

void NcclCore::pump() {
  if (failed() || batches_.empty() || capture_) return;  // no event may be queried in a capture
  try {
    const DeviceGuard guard(*setup_.api, setup_.nccl.device);
    while (advance()) {
    }
  } catch (const CommError& error) {
    if (failed()) return;  // stopped meanwhile: the cause of that is more precise
    std::string text = error.what();
    if (!batches_.empty()) {
      const NcclBatch& first = batches_.front();
      text = describe_waiting(first.first, now() - first.enqueued(), "failed after") + ": " + text;
    }
    fail("rank " + std::to_string(rank()) + ": " + text, true);
  }
}

bool NcclCore::advance() {
  const bool idle = launch_end_->look();
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    NcclBatch& batch = batches_[i];
    if (batch.state == NcclBatch::State::kRunning) {
      if (i != 0 || !batch.done->query()) continue;
      if (failed()) return false;  // to stop the communicator ends the kernel, too, and fires the event
      complete(batch);
      batches_.pop_front();
      watch_first();
      return true;
    }
    if (!idle || waits_for_host_data(batch)) return false;
    if (batch.state == NcclBatch::State::kQueued) {
      launch(batch);
    } else {
      finish_launch(batch);
    }
    return true;
  }
  return false;
}

// The stream orders data in GPU memory; host memory has an operation's result only when the operation is complete.
bool NcclCore::waits_for_host_data(const NcclBatch& batch) const {
  if (batch.state != NcclBatch::State::kQueued) return false;
  for (const NcclBatch& before : batches_) {
    if (before.state != NcclBatch::State::kRunning) break;
    for (const Shared& writer : before.works) {
      if (!writer->result_area()) continue;
      const Range written = range(writer->out_, writer->written_bytes());
      for (const Shared& reader : batch.works) {
        if (written.overlaps(range(reader->in_, in_bytes(reader->descriptor_, world_size())))) return true;
      }
    }
  }
  return false;
}

void NcclCore::complete(NcclBatch& batch) {
  watchdog_->watch_nothing();  // its events are used again
  if (batch.works.empty()) return pool_.give_back(std::move(batch.done));
  const Nanoseconds seen = now();
  const Nanoseconds launched = batch.works.front()->timing_.started;
  const Nanoseconds began = event_times_.of(*batch.began, launched, seen);
  const Nanoseconds ended = event_times_.of(*batch.done, began, seen);
  for (const Shared& work : batch.works) {
    const StagingArea* const area = work->result_area();
    if (area) std::memcpy(work->out_, area->host(), work->written_bytes());
    pool_.give_back(std::move(work->staged_in_));
    pool_.give_back(std::move(work->staged_out_));
    work->timing_.started = began;
    work->timing_.ended = ended;
    work->complete_ = true;
  }
  if (event_times_.is_stale(seen)) batch.done = event_times_.measure_from(std::move(batch.done), ended);
  pool_.give_back(std::move(batch.ready));
  pool_.give_back(std::move(batch.began));
  pool_.give_back(std::move(batch.done));
}

void NcclCore::order_after(cudaStream_t stream, std::uint64_t sequence) {
  const auto find = [&]() -> NcclBatch* {
    for (NcclBatch& batch : batches_) {
      for (const Shared& work : batch.works) {
        if (work->descriptor_.sequence == sequence) return &batch;
      }
    }
    return nullptr;
  };
  for (const Shared& work : grouped_) {
    if (work->descriptor_.sequence == sequence) {
      throw CommError(describe(work->descriptor_) + " belongs to a group that is open");
    }
  }
  if (capture_) return join_captured(stream, sequence);
  const Nanoseconds began = now();
  for (;;) {
    pump();
    throw_if_failed();
    NcclBatch* const batch = find();
    if (!batch) return;  // complete
    // An event that is not recorded yet would count as fired.
    if (batch->state == NcclBatch::State::kRunning) {
      return check_cuda(*setup_.api, setup_.api->cudaStreamWaitEvent(stream, batch->done->get(), 0),
                        "ordering streams");
    }
    if (now() - began > Nanoseconds(setup_.options.timeout)) time_out(*batch->works.front(), began);
    nap();
  }
}

void NcclCore::hand_over_all() {
  const Nanoseconds began = now();
  for (;;) {
    pump();
    if (failed() || batches_.empty() || batches_.back().state == NcclBatch::State::kRunning) return;
    if (now() - began > Nanoseconds(setup_.options.timeout)) return time_out(*batches_.back().works.back(), began);
    nap();
  }
}

bool NcclCore::let_device_finish() noexcept {
  try {
    hand_over_all();
    const DeviceGuard guard(*setup_.api, setup_.nccl.device);
    // After a failure all buffers together wait for kAfterFailure at most, because the process is about to end.
    if (failed() && !patience_after_failure_) patience_after_failure_ = now() + Nanoseconds(kAfterFailure);
    const Nanoseconds deadline = patience_after_failure_.value_or(now() + Nanoseconds(setup_.options.timeout));
    std::vector<cudaStream_t> streams{stream_.get()};
    if (setup_.nccl.current_stream) streams.push_back(static_cast<cudaStream_t>(setup_.nccl.current_stream()));
    bool done = true;
    for (const cudaStream_t stream : streams) {
      auto event = pool_.event();
      event->record(stream);
      while (!event->query() && now() < deadline) nap();
      done &= event->query();
      pool_.give_back(std::move(event));
    }
    return done;
  } catch (const CommError&) {  // a device that has failed uses no memory
    return true;
  }
}

void NcclCore::synchronize(const char* what) {
  auto event = pool_.event();
  event->record(stream_.get());
  const Nanoseconds began = now();
  while (!event->query()) {
    throw_if_failed();
    if (now() - began > Nanoseconds(setup_.options.timeout)) {
      fail("rank " + std::to_string(rank()) + ": " + what + " timed out: the GPU does not answer", true);
    }
    nap();
  }
  throw_if_failed();  // the event may have fired because the communicator was stopped
  pool_.give_back(std::move(event));
}

void NcclCore::fail(const std::string& cause, bool own) {
  {
    const std::scoped_lock lock(mutex_);
    if (failed_) return;
    cause_ = cause;
    own_failure_ = own;
    failed_.store(true, std::memory_order_release);
  }
  failed_now_.notify_all();
  link_->stop();
}

void NcclCore::throw_if_failed(const NcclWork* work, Nanoseconds since) {
  if (!failed()) return;
  const std::scoped_lock lock(mutex_);
  if (own_failure_ || !work) throw CommError(cause_);
  throw CommError(describe_waiting({work->descriptor_, nullptr}, now() - since, "was stopped after") + ": " + cause_);
}

void NcclCore::watch_first() {
  if (batches_.empty() || batches_.front().state != NcclBatch::State::kRunning) return watchdog_->watch_nothing();
  const NcclBatch& first = batches_.front();
  watchdog_->watch(first.first, first.began.get(), *first.done);
}

void NcclCore::close() {
  capture_.reset();
  const Nanoseconds deadline = now() + kClosing;
  while (!failed() && !batches_.empty() && now() < deadline) {
    pump();
    nap();
  }
  watchdog_.reset();
  // The remaining operations must no longer touch memory.
  if (!batches_.empty()) fail("rank " + std::to_string(rank()) + " has closed its communicator", true);
  launch_end_.reset();  // after an abort, so that no call of its thread still waits for the device
  if (!failed()) link_->finalize(kClosing);
  batches_.clear();  // batches refer to this object, and it to them
  grouped_.clear();
  // cudaFree() waits for the whole device, which may work for ever after a failure; the memory then stays allocated.
  if (!failed() || let_device_finish()) static_cast<void>(setup_.api->cudaFree(std::exchange(barrier_data_, nullptr)));
}

}  // namespace dtrain::comm
