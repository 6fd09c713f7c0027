// profile/operators-rank-NNNN.json: what the operators of one batch computed and moved on one rank, and how long they
// took. docs/profile-format.md describes the file. Plain values and functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::profile {

inline constexpr int kOperatorCountsSchema = 1;

// Calls of one operator in one type; of an operator that makes FLOPs, those with the same shapes.
struct OperatorCount {
  std::string name;    // "aten::addmm"
  std::string dtype;   // of the arithmetic, as Python names it: "float32"; empty: it has no tensor
  std::string format;  // of a convolution's data: "contiguous" or "channels_last"; else empty
  std::vector<std::vector<std::int64_t>>
      shapes;  // of its tensors: of every call where FLOPs are made, else the largest
  std::int64_t calls = 0;
  std::int64_t flops = 0;         // a multiplication and an addition are two
  std::int64_t bytes = 0;         // of the tensors that it reads and writes
  std::optional<double> seconds;  // of all its calls, with what they called; empty on a GPU, which works later
};

struct OperatorCounts {
  int rank = 0;
  std::string host, device;     // "cpu" or "cuda"
  std::int64_t threads = 1;     // that an operator may use on a CPU
  std::int64_t batch = 0;       // which one this is, of those that were counted the fastest; from 1
  std::int64_t samples = 0;     // in it, on this rank
  std::int64_t counted = 0;     // batches
  double flops_per_sample = 0;  // the most of any counted batch: what a fuser has fused is not seen
  std::string dtype;            // in which most of them are made; empty: there are none
  std::vector<OperatorCount> operators;
};

// "operators-rank-0003.json"
std::string operators_file_name(int rank);

Json to_json(const OperatorCounts& counts);

}  // namespace dtrain::profile
