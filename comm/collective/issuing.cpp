#include "collective/issuing.h"

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

Descriptor data_descriptor(Kind kind, std::size_t count, DataType type, int bucket = -1) {
  Descriptor descriptor;
  descriptor.kind = kind;
  descriptor.count = count;
  descriptor.type = type;
  descriptor.bucket = bucket;
  return descriptor;
}

}  // namespace

Work IssuingCommunicator::checked(const Descriptor& descriptor, const void* in, void* out) {
  const bool has_result = descriptor.kind != Kind::kReduce || descriptor.root == rank();
  if (payload_bytes(descriptor, world_size()) != 0 && (!in || (!out && has_result))) {
    throw CommError(describe(descriptor) + ": the data pointer is null");
  }
  return issue(descriptor, in, has_result ? out : nullptr);
}

void IssuingCommunicator::check_root(const char* operation, int root) const {
  if (root >= 0 && root < world_size()) return;
  throw CommError(std::string(operation) + ": there is no rank " + std::to_string(root) + " in a world of " +
                  std::to_string(world_size()));
}

Work IssuingCommunicator::reduction(Kind kind, std::size_t count, DataType type, const ReduceOptions& options,
                                    const void* in, void* out, int root) {
  Descriptor descriptor = data_descriptor(kind, count, type, options.bucket);
  descriptor.root = root;
  descriptor.op = options.op;
  descriptor.pre_scale = options.pre_scale;
  descriptor.post_scale = options.post_scale;
  if (!is_floating(type) && (options.op == ReduceOp::kMean || options.pre_scale != 1.0 || options.post_scale != 1.0)) {
    throw CommError(describe(descriptor) + ": mean and scaling need a floating point type",
                    "sum the integers and divide the result");
  }
  if (is_floating(type) && is_bitwise(options.op)) {
    throw CommError(describe(descriptor) + ": bitwise operations need integers or bool");
  }
  return checked(descriptor, in, out);
}

Work IssuingCommunicator::all_reduce(const void* in, void* out, std::size_t count, DataType type,
                                     const ReduceOptions& options) {
  return reduction(Kind::kAllReduce, count, type, options, in, out);
}

Work IssuingCommunicator::reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                                         const ReduceOptions& options) {
  return reduction(Kind::kReduceScatter, count, type, options, in, out);
}

Work IssuingCommunicator::reduce_parts(void* data, std::size_t count, DataType type, const ReduceOptions& options) {
  return reduction(Kind::kReduceParts, count, type, options, data, data);
}

Work IssuingCommunicator::all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket) {
  return checked(data_descriptor(Kind::kAllGather, count, type, bucket), in, out);
}

Work IssuingCommunicator::gather_parts(void* data, std::size_t count, DataType type, int bucket) {
  return checked(data_descriptor(Kind::kGatherParts, count, type, bucket), data, data);
}

Work IssuingCommunicator::reduce(const void* in, void* out, std::size_t count, DataType type, int root,
                                 const ReduceOptions& options) {
  check_root("reduce", root);
  return reduction(Kind::kReduce, count, type, options, in, out, root);
}

Work IssuingCommunicator::broadcast(void* data, std::size_t count, DataType type, int root) {
  check_root("broadcast", root);
  Descriptor descriptor = data_descriptor(Kind::kBroadcast, count, type);
  descriptor.root = root;
  return checked(descriptor, data, data);
}

void IssuingCommunicator::agree(Kind kind, std::size_t bytes, bool group_open) {
  Descriptor descriptor;
  descriptor.kind = kind;
  descriptor.count = bytes;
  if (group_open) throw CommError(describe(descriptor) + " was called inside a group, which it cannot be part of");
  issue(descriptor, nullptr, nullptr).wait();
}

Work IssuingCommunicator::barrier() {
  return issue(Descriptor{}, nullptr, nullptr);
}

}  // namespace dtrain::comm
