// What a run leaves out, to measure what the rest takes: `--mock`. Plain values and functions.
//
// Each word is the counterpart of a prediction of dtrain/analysis/what_if.h. A mock run's weights mean nothing: none
// are written, and none are validated.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::run {

struct Mock {
  bool loader = false;  // each rank reads one batch and trains on it again and again
  bool train = false;   // batches are read as fast as they come, by each rank for itself, and nothing is done with them
  bool comm = false;    // each rank trains by itself: after the start ranks say nothing to each other until the end

  bool any() const { return loader || train || comm; }
  bool apart() const { return train || comm; }  // ranks do not wait for each other
};

// Of the words of the command line, "loader,comm" being two. ConfigError names those that are none, or do not go
// together.
Mock parse_mock(const std::vector<std::string>& words);

// "loader,comm"; empty: none.
std::string to_string(const Mock& mock);
// "mock run (comm): gradients are not exchanged; its weights mean nothing"
std::string mock_text(const Mock& mock);
// For plan.json: {"what": "comm", "text": as mock_text()}.
Json to_json(const Mock& mock);

// ConfigError where there is nothing to leave out.
void check_mock(const Mock& mock, int world_size);

}  // namespace dtrain::run
