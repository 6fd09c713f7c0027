// Hands a batch to NCCL: staging, the calls, the event behind them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "collective/reduce.h"
#include "dtrain/base/error.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

// NCCL has no 16-bit integers. It moves them as float16, which changes no bits.
ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kBool:
      return ncclUint8;
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kFloat16:
    case DataType::kInt16:
      return ncclFloat16;
    case DataType::kBfloat16:
      return ncclBfloat16;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
  }
  throw CommError("NCCL has no such type");
}

// Closes this thread's open group, also when an exception leaves the scope.
class NcclGroup {
 public:
  explicit NcclGroup(const NcclApi& api) : api_(api) { check_nccl(api, api.ncclGroupStart(), "opening an NCCL group"); }
  ~NcclGroup() {
    if (open_) static_cast<void>(api_.ncclGroupEnd());
  }
  void end(ncclComm_t comm) {
    open_ = false;
    check_nccl(api_, api_.ncclGroupEnd(), "handing operations to NCCL", comm);
  }

 private:
  const NcclApi& api_;
  bool open_ = true;
};

double factor_of(const Descriptor& descriptor, int world_size) {
  const double factor = descriptor.pre_scale * descriptor.post_scale;
  return descriptor.op == ReduceOp::kMean ? factor / world_size : factor;
}

// The factor in the data's own type, as NCCL needs it for multiplying.
struct Scalar {
  alignas(8) std::byte bytes[8] = {};
  Scalar(const Descriptor& descriptor, double factor) {
    const auto narrow = static_cast<float>(factor);
    double kept = factor;
    if (descriptor.type == DataType::kFloat64) {
      std::memcpy(bytes, &factor, sizeof factor);
    } else if (descriptor.type == DataType::kFloat32) {
      std::memcpy(bytes, &narrow, sizeof narrow);
      kept = narrow;
    } else {
      float back = 0;
      from_float32(descriptor.type, &narrow, bytes, 1);
      to_float32(descriptor.type, bytes, &back, 1);
      kept = back;
    }
    if (std::fabs(kept - factor) > std::fabs(factor) / 128) {
      throw CommError(describe(descriptor) + ": NCCL multiplies by " + std::to_string(factor) + " in " +
                          std::string(name_of(descriptor.type)) + ", which does not hold it",
                      "scale before the values are narrowed");
    }
  }
};

// Returns the rank's part if all parts have one size, as NCCL's own operations on parts require; otherwise empty.
std::optional<Part> equal_part(const Descriptor& descriptor, int rank, int world_size) {
  const Part first = part_of(descriptor.count, descriptor.type, 0, world_size);
  const Part last = part_of(descriptor.count, descriptor.type, world_size - 1, world_size);
  if (first.size() != last.size()) return std::nullopt;
  return part_of(descriptor.count, descriptor.type, rank, world_size);
}

// Calls `call_piece(first element, number)` for the pieces in which one rank scales `count` elements. NCCL 2.28 gives
// each of min(32, bytes / 16 KiB rounded up) blocks count / blocks elements, rounded down, so it does not scale up to
// 31 elements at the end. It scales all elements with one block (16 KiB), or with 32 blocks of whole packs of 16 bytes.
template <typename CallPiece>
void for_scaled_pieces(std::size_t count, std::size_t element_bytes, const CallPiece& call_piece) {
  constexpr std::size_t kBlockBytes = 16 << 10;
  constexpr std::size_t kBlocks = 32;
  const std::size_t block = kBlockBytes / element_bytes;
  std::size_t begin = 0;
  if (count >= kBlocks * block) {
    begin = count - count % (kBlocks * 16 / element_bytes);
    call_piece(0, begin);
  }
  for (; begin < count; begin += block) call_piece(begin, std::min(block, count - begin));
}

}  // namespace

void check_reduction(const Descriptor& descriptor, int world_size) {
  if (!reduces(descriptor.kind)) return;
  if (descriptor.type == DataType::kInt16) throw CommError(describe(descriptor) + ": NCCL does not reduce int16");
  if (is_bitwise(descriptor.op)) throw CommError(describe(descriptor) + ": NCCL has no bitwise operations");
  if (descriptor.pre_scale == 1.0 && descriptor.post_scale == 1.0) return;
  // Even two scales whose product is 1 are refused: a maximum of negated values is a minimum.
  if (descriptor.op != ReduceOp::kSum && descriptor.op != ReduceOp::kMean) {
    throw CommError(describe(descriptor) + ": NCCL scales sums and means alone", "scale the data before or after");
  }
  static_cast<void>(Scalar(descriptor, factor_of(descriptor, world_size)));
}

ncclRedOp_t NcclCore::reduction(NcclBatch& batch, const Descriptor& descriptor, ncclComm_t comm) {
  if (descriptor.type == DataType::kBool) {  // bytes with the values 0 and 1
    return descriptor.op == ReduceOp::kSum || descriptor.op == ReduceOp::kMax ? ncclMax : ncclMin;
  }
  switch (descriptor.op) {
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kProduct:
      return ncclProd;
    default:
      break;
  }
  if (descriptor.pre_scale * descriptor.post_scale == 1.0) return descriptor.op == ReduceOp::kSum ? ncclSum : ncclAvg;
  Scalar scalar(descriptor, factor_of(descriptor, world_size()));
  ncclRedOp_t op = ncclSum;
  check_nccl(*setup_.api,
             setup_.api->ncclRedOpCreatePreMulSum(&op, scalar.bytes, nccl_type(descriptor.type),
                                                  ncclScalarHostImmediate, comm),
             "making a scaled sum", comm);
  batch.own_ops.push_back(op);
  return op;
}

void NcclCore::stage_in(NcclWork& work) {
  const std::size_t in = in_bytes(work.descriptor_, world_size());
  const std::size_t out = work.written_bytes();
  work.from_ = work.in_;
  work.to_ = work.out_;
  if (in != 0 && !is_device_memory(*setup_.api, work.in_)) {
    // `out` may be longer than `in` if both begin at the same place.
    work.staged_in_ = pool_.area(work.out_ == work.in_ ? std::max(in, out) : in);
    const StagingArea& area = *work.staged_in_;
    std::memcpy(area.host(), work.in_, in);
    check_cuda(*setup_.api,
               setup_.api->cudaMemcpyAsync(area.device(), area.host(), in, cudaMemcpyHostToDevice, stream_.get()),
               "copying to the GPU");
    work.from_ = work.staged_in_->device();
    if (work.out_ == work.in_) work.to_ = work.staged_in_->device();
  }
  if (out != 0 && work.out_ != work.in_ && !is_device_memory(*setup_.api, work.out_)) {
    work.staged_out_ = pool_.area(out);
    work.to_ = work.staged_out_->device();
  }
}

void NcclCore::stage_out(NcclWork& work) {
  const std::size_t bytes = work.written_bytes();
  const StagingArea* const area = work.result_area();
  if (!area) return;
  check_cuda(*setup_.api,
             setup_.api->cudaMemcpyAsync(area->host(), area->device(), bytes, cudaMemcpyDeviceToHost, stream_.get()),
             "copying from the GPU");
}

void NcclCore::call(NcclBatch& batch, const NcclWork& work, ncclComm_t comm) {
  const NcclApi& api = *setup_.api;
  const Descriptor& d = work.descriptor_;
  const auto check = [&](ncclResult_t result) { check_nccl(api, result, "handing an operation to NCCL", comm); };
  const cudaStream_t stream = stream_.get();
  if (d.kind == Kind::kBarrier) {
    return check(api.ncclAllReduce(barrier_data_, barrier_data_, 1, ncclFloat32, ncclSum, comm, stream));
  }
  if (d.count == 0) return;
  const ncclDataType_t type = nccl_type(d.type);
  const auto data_of = [&](const Part& part) {
    return static_cast<std::byte*>(work.to_) + part.begin * size_of(d.type);
  };
  const auto each_part = [&](const auto& call_part) {
    for (int r = 0; r < world_size(); ++r) {
      const Part part = part_of(d.count, d.type, r, world_size());
      if (part.size() > 0) check(call_part(r, data_of(part), part.size()));
    }
  };
  if (world_size() == 1 && reduces(d.kind) && d.pre_scale * d.post_scale != 1.0) {
    const ncclRedOp_t op = reduction(batch, d, comm);
    const auto* const from = static_cast<const std::byte*>(d.kind == Kind::kReduceParts ? work.to_ : work.from_);
    auto* const to = static_cast<std::byte*>(work.to_);
    for_scaled_pieces(d.count, size_of(d.type), [&](std::size_t begin, std::size_t count) {
      const std::size_t offset = begin * size_of(d.type);
      check(api.ncclAllReduce(from + offset, to + offset, count, type, op, comm, stream));
    });
    return;
  }
  switch (d.kind) {
    case Kind::kAllReduce:
      return check(api.ncclAllReduce(work.from_, work.to_, d.count, type, reduction(batch, d, comm), comm, stream));
    case Kind::kReduceScatter:
      return check(api.ncclReduceScatter(work.from_, work.to_, d.count, type, reduction(batch, d, comm), comm, stream));
    case Kind::kReduce:
      return check(
          api.ncclReduce(work.from_, work.to_, d.count, type, reduction(batch, d, comm), d.root, comm, stream));
    case Kind::kAllGather:
      return check(api.ncclAllGather(work.from_, work.to_, d.count, type, comm, stream));
    case Kind::kBroadcast:
      return check(api.ncclBroadcast(work.from_, work.to_, d.count, type, d.root, comm, stream));
    case Kind::kReduceParts: {
      const ncclRedOp_t op = reduction(batch, d, comm);
      if (const auto own = equal_part(d, rank(), world_size())) {
        return check(api.ncclReduceScatter(work.to_, data_of(*own), own->size(), type, op, comm, stream));
      }
      return each_part([&](int r, std::byte* data, std::size_t count) {
        return api.ncclReduce(data, data, count, type, op, r, comm, stream);
      });
    }
    case Kind::kGatherParts:
      if (const auto own = equal_part(d, rank(), world_size())) {
        return check(api.ncclAllGather(data_of(*own), work.to_, own->size(), type, comm, stream));
      }
      return each_part([&](int r, std::byte* data, std::size_t count) {
        return api.ncclBroadcast(data, data, count, type, r, comm, stream);
      });
    default:
      return;
  }
}

void NcclCore::launch(NcclBatch& batch) {
  const Nanoseconds time = now();
  if (batch.ready) {
    check_cuda(*setup_.api, setup_.api->cudaStreamWaitEvent(stream_.get(), batch.ready->get(), 0), "ordering streams");
  }
  batch.began = pool_.event();
  batch.began->record(stream_.get());
  for (const Shared& work : batch.works) {
    work->timing_.started = time;
    stage_in(*work);
  }
  batch.done = pool_.event();
  hand_to_nccl(batch);
  batch.state = NcclBatch::State::kLaunching;
  launch_end_->begin([this, &batch] { put_behind(batch); });
}

void NcclCore::hand_to_nccl(NcclBatch& batch) {
  link_->use([&](ncclComm_t comm) {
    NcclGroup group(*setup_.api);
    for (const Shared& work : batch.works) call(batch, *work, comm);
    group.end(comm);
  });
}

// Called on any thread, while the batch is being launched.
void NcclCore::put_behind(NcclBatch& batch) {
  for (const Shared& work : batch.works) stage_out(*work);
  batch.done->record(stream_.get());
}

void NcclCore::finish_launch(NcclBatch& batch) {
  if (!batch.own_ops.empty()) {
    link_->use([&](ncclComm_t comm) {
      for (const ncclRedOp_t op : batch.own_ops) {
        check_nccl(*setup_.api, setup_.api->ncclRedOpDestroy(op, comm), "ending a scaled sum", comm);
      }
      batch.own_ops.clear();
    });
  }
  batch.state = NcclBatch::State::kRunning;
  if (&batch == &batches_.front()) watch_first();
}

}  // namespace dtrain::comm
