// What is noted of each operation. It lies in shared memory, where the other ranks of the host read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/torch_distributed/source_line.h"

namespace dtrain::torch_distributed {

// Sizes and types of a list of tensors. Equal ones that follow each other are one entry. Those that have no room are
// left out.
class Shapes {
 public:
  void add(const std::vector<at::Tensor>& tensors);
  // Calls visit(type, sizes) for each tensor.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t at = 0; at < words_;) {
      const std::int64_t head = data_[at++];
      const auto dimensions = static_cast<std::size_t>(head & 0xff);
      const std::vector<std::int64_t> sizes(data_.begin() + at, data_.begin() + at + dimensions);
      for (std::int64_t i = 0; i < head >> 16; ++i) visit(static_cast<at::ScalarType>(head >> 8 & 0xff), sizes);
      at += dimensions;
    }
  }

 private:
  std::array<std::int64_t, 12> data_;
  std::size_t words_ = 0;
};

struct FlightRecord {
  std::array<char, 32> name{};  // "all_reduce"
  std::uint64_t sequence = 0;   // of the collectives of its group; for a message that of the last one before it
  std::uint64_t message = 0;    // the number of a message among those of its group; 0: a collective
  std::int64_t created_ns = 0;  // by the wall clock
  std::int64_t timeout_ms = 0;
  std::int32_t group = -1;  // its place in the table of groups
  std::int32_t rank = 0;    // of the group, as is the next one
  std::int32_t peer = -1;   // of a message; -1: any
  SourceLine line;
  Shapes inputs, outputs;

  // Returns "all_reduce #512, train.py:87".
  std::string text() const;
};

// A record as it was at one moment.
struct FlightView {
  std::uint64_t number = 0;   // of all operations of the rank, from 0 on
  std::int64_t ended_ns = 0;  // by the wall clock; 0: it has not ended
  FlightRecord record;
};

struct FlightGroup {
  std::int32_t place = 0;
  std::string name, description;
  std::string ranks;  // "[0, 1]"
};

// Returns the pickle that `python -m torch.distributed.flight_recorder.fr_trace` reads.
std::string pickle_of(const std::vector<FlightGroup>& groups, const std::vector<FlightView>& records);

}  // namespace dtrain::torch_distributed
