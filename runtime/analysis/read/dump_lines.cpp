#include "dtrain/analysis/dump_lines.h"

namespace dtrain::analysis {
namespace {

constexpr std::pair<Operation, std::string_view> kNames[] = {
    {Operation::kAllReduce, "all_reduce"}, {Operation::kReduceScatter, "reduce_scatter"},
    {Operation::kAllGather, "all_gather"}, {Operation::kBroadcast, "broadcast"},
    {Operation::kBarrier, "barrier"},
};

}  // namespace

std::string_view name_of(Operation operation) {
  for (const auto& [value, name] : kNames) {
    if (value == operation) return name;
  }
  return "other";
}

Operation operation_of(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return Operation::kOther;
}

}  // namespace dtrain::analysis
