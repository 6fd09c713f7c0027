#include "dtrain/comm/types.h"

#include <algorithm>

namespace dtrain::comm {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
      return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

bool is_floating(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
  }
  return "unknown type";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "unknown reduction";
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

}  // namespace dtrain::comm
