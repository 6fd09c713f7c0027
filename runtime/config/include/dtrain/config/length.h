// Distances in training, in batches, records or epochs. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "dtrain/config/word_table.h"

namespace dtrain::config {

inline constexpr std::int64_t kMaxLength = 1'000'000'000'000'000;

enum class LengthUnit { kBatches, kRecords, kEpochs };
inline constexpr std::array kLengthUnits{Word<LengthUnit>{"batches", LengthUnit::kBatches},
                                         Word<LengthUnit>{"records", LengthUnit::kRecords},
                                         Word<LengthUnit>{"epochs", LengthUnit::kEpochs}};

// `{epochs: …}` of a script without an experiment file (`dtrain run`, dtrain.init()): its own loop has the length.
inline constexpr std::int64_t kEpochsOfScripts = 1'000'000;

// A distance in training: `{epochs: 2}`.
struct Length {
  LengthUnit unit = LengthUnit::kBatches;
  std::int64_t count = 0;
  bool operator==(const Length&) const = default;
};

// "2 epochs", "1 batch"
std::string to_string(const Length& length);

// Returns the batches, rounded up: a batch here has global_batch_size records, whatever aggregation_frequency is.
std::int64_t in_batches(const Length& length, std::int64_t global_batch_size, std::int64_t batches_per_epoch);

}  // namespace dtrain::config
