// profile/operators-rank-NNNN.json: the computing, the data and the times of the operators of one batch on one rank.
// docs/profile-format.md describes the file. Plain values and functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::profile {

inline constexpr int kOperatorCountsSchema = 1;

// Calls of one operator in one type. Calls of an operator that makes FLOPs are separate for each shape.
struct OperatorCount {
  std::string name;    // "aten::addmm"
  std::string dtype;   // type of the arithmetic, in Python's words: "float32"; empty: it has no tensor
  std::string format;  // of a convolution's data: "contiguous" or "channels_last"; else empty
  std::vector<std::vector<std::int64_t>>
      shapes;  // of its tensors: those of every call if it makes FLOPs, else the largest
  std::int64_t calls = 0;
  std::int64_t flops = 0;         // a multiplication and an addition are two
  std::int64_t bytes = 0;         // of the tensors that it reads and writes
  std::optional<double> seconds;  // of all calls, with the operators that they call; empty on a GPU
};

struct OperatorCounts {
  int rank = 0;
  std::string host, device;     // "cpu" or "cuda"
  std::int64_t threads = 1;     // threads of an operator on a CPU
  std::int64_t batch = 0;       // number of the batch, from 1: the fastest of the counted batches
  std::int64_t samples = 0;     // samples of the batch on this rank
  std::int64_t counted = 0;     // batches
  double flops_per_sample = 0;  // the most of any counted batch: fused operators are not counted
  std::string dtype;            // the type of most FLOPs; empty: there are none
  std::vector<OperatorCount> operators;
};

// "operators-rank-0003.json"
std::string operators_file_name(int rank);

Json to_json(const OperatorCounts& counts);

}  // namespace dtrain::profile
