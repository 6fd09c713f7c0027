// Measures how many samples of pictures this machine prepares per second, without training, and the parts of this time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

struct WorkerRate {
  int workers = 0;
  double samples_per_second = 0;
};

struct ThroughputReport {
  // Times of one sample on one core, in seconds.
  double read_s = 0;       // the bytes of the file, from the system's cache if they are there
  double decode_s = 0;     // the pixels that the transforms need
  double transform_s = 0;  // the rest: resizing, colours, conversion
  double waiting_s = 0;    // part of read_s: waits for storage
  double bytes = 0;        // of a file
  double output_bytes = 0;
  double storage_bytes = 0;  // bytes of a file that came from storage
  std::vector<WorkerRate> rates;
  std::string limit;   // "decode", "transform", "disk" or "memory"
  std::string advice;  // the change to make, with the key to set
};

// Reads random samples with each number of `workers`, each time for `duration`. Starts threads. DataError: those of the
// source.
ThroughputReport measure_throughput(const std::shared_ptr<const SampleSource>& source,
                                    const std::vector<Transform>& transforms, const PictureOptions& options,
                                    const std::vector<int>& workers, std::chrono::duration<double> duration);

}  // namespace dtrain::data
