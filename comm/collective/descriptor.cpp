#include "collective/descriptor.h"

#include <algorithm>
#include <cstdio>

namespace dtrain::comm {

namespace {

// Enumerators come from peers, too, so a number may be beyond the last one.
template <typename Facts, std::size_t kCount, typename Enum>
Facts entry_of(const Facts (&table)[kCount], Enum enumerator, Facts otherwise) {
  const auto number = static_cast<std::size_t>(enumerator);
  return number < kCount ? table[number] : otherwise;
}

struct TypeFacts {
  std::string_view name;
  std::size_t bytes;
};

TypeFacts facts_of(DataType type) {
  static constexpr TypeFacts kFacts[] = {{"uint8", 1},   {"int32", 4},   {"int64", 8}, {"float16", 2}, {"bfloat16", 2},
                                         {"float32", 4}, {"float64", 8}, {"int8", 1},  {"int16", 2},   {"bool", 1}};
  return entry_of(kFacts, type, {"unknown type", 0});
}

std::string_view name_of(Kind kind) {
  static constexpr std::string_view kNames[] = {"all_reduce",      "reduce_scatter", "reduce_parts", "all_gather",
                                                "gather_parts",    "broadcast",      "barrier",      "allocate",
                                                "allocate_common", "reduce"};
  return entry_of<std::string_view>(kNames, kind, "unknown operation");
}

bool has_data(Kind kind) {
  return kind != Kind::kBarrier && kind != Kind::kAllocate && kind != Kind::kAllocateCommon;
}

std::string scale_text(const char* what, double scale) {
  char text[60];
  std::snprintf(text, sizeof text, ", %s by %.9g", what, scale);
  return scale == 1.0 ? "" : text;
}

}  // namespace

std::size_t size_of(DataType type) {
  return facts_of(type).bytes;
}

bool is_floating(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

std::string_view name_of(DataType type) {
  return facts_of(type).name;
}

std::string_view name_of(ReduceOp op) {
  static constexpr std::string_view kNames[] = {"sum", "mean", "min", "max", "product", "bit_and", "bit_or", "bit_xor"};
  return entry_of<std::string_view>(kNames, op, "unknown reduction");
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

Part part_of(std::size_t count, DataType type, int rank, int world_size) {
  const std::size_t line = 64 / size_of(type);  // elements
  const std::size_t lines = (count + line - 1) / line;
  const auto ranks = static_cast<std::size_t>(world_size);
  const auto begin_of = [&](std::size_t r) {
    return std::min(count, (lines / ranks * r + std::min(r, lines % ranks)) * line);
  };
  const auto r = static_cast<std::size_t>(rank);
  return {begin_of(r), begin_of(r + 1)};
}

std::size_t in_bytes(const Signature& d, int world_size) {
  if (!has_data(d.kind)) return 0;
  return d.count * size_of(d.type) * (d.kind == Kind::kReduceScatter ? static_cast<std::size_t>(world_size) : 1);
}

std::size_t out_bytes(const Signature& d, int world_size) {
  if (!has_data(d.kind)) return 0;
  return d.count * size_of(d.type) * (d.kind == Kind::kAllGather ? static_cast<std::size_t>(world_size) : 1);
}

std::size_t payload_bytes(const Signature& d, int world_size) {
  return std::max(in_bytes(d, world_size), out_bytes(d, world_size));
}

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduceParts ||
         kind == Kind::kReduce;
}

Reduction reduction_of(const Signature& d, int world_size) {
  return {d.type, d.op, d.pre_scale, d.post_scale, world_size};
}

bool same_operation(const Signature& a, const Signature& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.root == b.root &&
         a.bucket == b.bucket && a.pre_scale == b.pre_scale && a.post_scale == b.post_scale;
}

std::string describe(const Signature& d) {
  std::string text(name_of(d.kind));
  if (d.kind == Kind::kBarrier) return text;
  if (!has_data(d.kind)) return text + "(" + std::to_string(d.count) + " bytes)";
  text += "(";
  if (reduces(d.kind)) text += std::string(comm::name_of(d.op)) + ", ";
  text += std::string(comm::name_of(d.type)) + ", " + std::to_string(d.count) + " elements";
  if (d.kind == Kind::kAllGather || d.kind == Kind::kReduceScatter) text += " a rank";
  if (d.kind == Kind::kBroadcast) text += " from rank " + std::to_string(d.root);
  if (d.kind == Kind::kReduce) text += " to rank " + std::to_string(d.root);
  if (d.bucket >= 0) text += ", bucket " + std::to_string(d.bucket);
  return text + scale_text("inputs scaled", d.pre_scale) + scale_text("scaled", d.post_scale) + ")";
}

std::string describe(const Signature& d, std::uint64_t sequence) {
  return describe(d) + ", operation " + std::to_string(sequence);
}

ShownOperation shown(const Signature& d, std::uint64_t sequence, int world_size) {
  return {describe(d, sequence), std::string(name_of(d.kind)), sequence, payload_bytes(d, world_size)};
}

}  // namespace dtrain::comm
