#include "engine/descriptor.h"

#include <cstdio>

namespace dtrain::comm {
namespace {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kAllocate:
      return "allocate";
  }
  return "unknown operation";
}

}  // namespace

std::size_t payload_bytes(const Descriptor& d) {
  if (d.kind == Kind::kBarrier || d.kind == Kind::kAllocate) return 0;
  return d.count * size_of(static_cast<DataType>(d.type));
}

bool same_operation(const Descriptor& a, const Descriptor& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.root == b.root &&
         a.bucket == b.bucket && a.post_scale == b.post_scale;
}

std::string describe(const Descriptor& d) {
  std::string text(name_of(d.kind));
  if (d.kind == Kind::kBarrier) return text;
  if (d.kind == Kind::kAllocate) return text + "(" + std::to_string(d.count) + " bytes)";
  text += "(";
  if (d.kind == Kind::kAllReduce) text += std::string(comm::name_of(static_cast<ReduceOp>(d.op))) + ", ";
  text += std::string(comm::name_of(static_cast<DataType>(d.type))) + ", " + std::to_string(d.count) + " elements";
  if (d.kind == Kind::kAllGather) text += " a rank";
  if (d.kind == Kind::kBroadcast) text += " from rank " + std::to_string(d.root);
  if (d.bucket >= 0) text += ", bucket " + std::to_string(d.bucket);
  if (d.post_scale != 1.0) {
    char scale[40];
    std::snprintf(scale, sizeof scale, ", scaled by %.9g", d.post_scale);
    text += scale;
  }
  return text + ")";
}

}  // namespace dtrain::comm
