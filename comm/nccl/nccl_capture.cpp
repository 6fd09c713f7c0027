// Operations that become part of a CUDA graph.
//
// The communicator's stream enters the capture behind the event of the first operation's issue, and leaves the capture
// when the caller's stream waits for the event behind the last operation. These events order the graph and never fire,
// so they must not be queried; they are used again after the capture. NCCL launches in the background as usual, and
// querying its progress makes no CUDA call (ncclCommGetAsyncError).
//
// NCCL launches a captured operation on all ranks together, because the ranks exchange the addresses of their memory. A
// rehearsal orders the streams in the same way, but does not call NCCL.
//
// A replay is one batch, whose event is recorded behind the replay on the caller's stream.
#include <algorithm>

#include "dtrain/base/error.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

std::string text_of(const std::vector<NcclBatch>& batches) {
  std::size_t operations = 0;
  for (const NcclBatch& batch : batches) operations += batch.works.size();
  if (operations == 0) return "a replayed step without operations";
  const std::string first = describe(batches.front().first);
  if (operations == 1) return "a replayed step, 1 operation: " + first;
  return "a replayed step, " + std::to_string(operations) + " operations from " + first;
}

bool has(const NcclBatch& batch, std::uint64_t sequence) {
  return std::ranges::any_of(batch.works, [&](const auto& work) { return work->sequence() == sequence; });
}

}  // namespace

void NcclCore::begin_capture(CaptureFor what) {
  throw_if_failed();
  if (capture_) throw CommError("begin_capture: a capture is under way already");
  if (group_open_) throw CommError("begin_capture: a group is open");
  if (!setup_.nccl.current_stream) {
    throw CommError(
        "begin_capture: the communicator was made without current_stream, so that no stream can be captured");
  }
  // Without ncclCommRevoke a failure ends the communicator, for which NCCL waits until no graph holds its operations.
  if (!setup_.api->ncclCommRevoke) {
    throw CommError("this version of NCCL cannot stop a communicator of which a CUDA graph holds operations",
                    "use NCCL 2.28.9 or a later one");
  }
  hand_over_all();
  throw_if_failed();
  capture_ = Capture();
  capture_->what = what;
  capture_->first_sequence = sequence_;
}

void NcclCore::check_capturable(const Descriptor& descriptor, const void* in, const void* out) const {
  const std::string what = describe(descriptor) + ", operation " + std::to_string(descriptor.sequence) + ", ";
  if (descriptor.sequence < setup_.nccl.compared_operations) {
    throw CommError(what + "cannot be part of a CUDA graph: the first " +
                        std::to_string(setup_.nccl.compared_operations) + " operations are compared with rank 0's",
                    "capture later");
  }
  if (reduces(descriptor.kind) && descriptor.pre_scale * descriptor.post_scale != 1.0) {
    throw CommError(
        what + "cannot be part of a CUDA graph: its scale is an object of NCCL's, which ends before the graph",
        "scale the data before or after");
  }
  const auto check = [&](const void* data, std::size_t bytes) {
    if (bytes == 0 || is_device_memory(*setup_.api, data)) return;
    throw CommError(what + "cannot be part of a CUDA graph: its data is in host memory, which is staged",
                    "capture operations on device memory alone");
  };
  const DeviceGuard guard(*setup_.api, setup_.nccl.device);
  check(in, in_bytes(descriptor, world_size()));
  check(out, out ? out_bytes(descriptor, world_size()) : 0);
}

void NcclCore::capture(std::vector<Shared> works) {
  const Nanoseconds began = now();
  const DeviceGuard guard(*setup_.api, setup_.nccl.device);
  NcclBatch batch;
  batch.first = {works.front()->descriptor_, nullptr};
  batch.works = std::move(works);
  batch.ready = pool_.event();
  batch.ready->record(static_cast<cudaStream_t>(setup_.nccl.current_stream()));
  check_cuda(*setup_.api, setup_.api->cudaStreamWaitEvent(stream_.get(), batch.ready->get(), 0), "ordering streams");
  for (const Shared& work : batch.works) {
    work->from_ = work->in_;
    work->to_ = work->out_;
  }
  if (capture_->what == CaptureFor::kReplays) hand_over_captured(batch, began);
  batch.done = pool_.event();
  batch.done->record(stream_.get());
  batch.state = NcclBatch::State::kRunning;
  capture_->batches.push_back(std::move(batch));
}

void NcclCore::hand_over_captured(NcclBatch& batch, Nanoseconds began) {
  hand_to_nccl(batch);
  while (!link_->ready()) {
    throw_if_failed();
    if (now() - began > Nanoseconds(setup_.options.timeout)) {
      time_out(*batch.works.front(), began);
      throw_if_failed();
    }
    nap();
  }
}

void NcclCore::join_captured(cudaStream_t stream, std::uint64_t sequence) {
  throw_if_failed();
  std::vector<NcclBatch>& batches = capture_->batches;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (!has(batches[i], sequence)) continue;
    check_cuda(*setup_.api, setup_.api->cudaStreamWaitEvent(stream, batches[i].done->get(), 0), "ordering streams");
    capture_->joined = std::max(capture_->joined, i + 1);  // its stream runs them in order
    return;
  }
  for (const NcclBatch& batch : batches_) {
    if (!has(batch, sequence)) continue;
    throw CommError(describe(batch.first) + ", operation " + std::to_string(sequence) +
                        ", was issued before the capture of a CUDA graph began, and cannot be joined in it",
                    "join it before");
  }
}

void NcclCore::end_capture() {
  if (!capture_) throw CommError("end_capture: no capture has begun");
  Capture capture = *std::exchange(capture_, std::nullopt);
  sequence_ = capture.first_sequence;  // the same on all ranks, even if a capture has failed in the middle
  const bool group_was_open = std::exchange(group_open_, false);
  grouped_.clear();
  if (capture.what == CaptureFor::kReplays) captured_ = std::make_shared<const std::string>(text_of(capture.batches));
  std::string lost;
  if (capture.joined < capture.batches.size()) {
    const NcclEntry& first = capture.batches[capture.joined].first;
    lost = describe(first) + ", operation " + std::to_string(first.descriptor.sequence) +
           ", was captured in a CUDA graph and never joined, so that the graph does not end";
  }
  for (NcclBatch& batch : capture.batches) {
    for (const Shared& work : batch.works) {
      work->complete_ = true;
      work->timing_ = {};
    }
    pool_.give_back(std::move(batch.ready));
    pool_.give_back(std::move(batch.done));
  }
  throw_if_failed();
  if (group_was_open) throw CommError("end_capture: a group is open, whose operations are not part of the CUDA graph");
  if (!lost.empty()) throw CommError(lost, "join() the Work of each captured operation, or of one behind it");
}

void NcclCore::replayed() {
  throw_if_failed();
  if (!captured_ || capture_) {
    throw CommError(std::string("replayed: ") + (capture_ ? "a capture is under way" : "no CUDA graph was captured"));
  }
  if (group_open_) throw CommError("replayed: a group is open");
  NcclBatch batch;
  batch.first.descriptor.sequence = sequence_++;
  batch.first.replay = captured_;
  remember(batch.first);
  const DeviceGuard guard(*setup_.api, setup_.nccl.device);
  batch.replayed = now();
  batch.done = pool_.event();
  batch.done->record(static_cast<cudaStream_t>(setup_.nccl.current_stream()));
  batch.state = NcclBatch::State::kRunning;
  batches_.push_back(std::move(batch));
  if (batches_.size() == 1) watch_first();
  pump();
  throw_if_failed();
}

}  // namespace dtrain::comm
