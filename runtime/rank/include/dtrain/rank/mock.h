// The parts that a run leaves out so that the rest can be measured: `--mock`. Plain values and functions.
//
// Each word corresponds to a prediction of dtrain/analysis/analysis.h. The weights of a mock run mean nothing: they are
// neither written nor validated.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::rank {

struct Mock {
  bool loader = false;  // each rank reads one batch and trains on it again and again
  bool train = false;   // each rank reads its batches as fast as it can and does nothing with them
  bool comm = false;    // each rank trains by itself; ranks do not communicate between the start and the end

  bool any() const { return loader || train || comm; }
  bool alone() const { return train || comm; }  // ranks do not wait for each other
};

// Parses the words of the command line; "loader,comm" is two words. ConfigError names unknown words and words that
// exclude each other.
Mock parse_mock(const std::vector<std::string>& words);

// "loader,comm"; empty: none.
std::string to_string(const Mock& mock);
// "mock run (comm): gradients are not exchanged; its weights mean nothing"
std::string mock_text(const Mock& mock);
// Returns the value in plan.json: {"what": "comm", "text": as mock_text()}.
Json to_json(const Mock& mock);

// ConfigError if a run of this size has nothing to leave out.
void check_mock(const Mock& mock, int world_size);

}  // namespace dtrain::rank
