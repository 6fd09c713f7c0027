// How targets hand their input to readers that take a path.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "dtrain/base/file.h"
#include "dtrain/data/dataset.h"
#include "targets.h"

namespace dtrain::fuzz {

// A file in memory with this content, there as long as this object.
class InputFile {
 public:
  explicit InputFile(Input content);
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  UniqueFd fd_;
};

// Two files in one input: its first two bytes, little-endian, are the length of the first one.
std::pair<Input, Input> split(Input input);

// Reads every sample, and that it can be: what the data set says of itself must agree with the memory it gives.
void read_all(const data::Dataset& dataset);

}  // namespace dtrain::fuzz
