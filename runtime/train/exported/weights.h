// The tensors of an exported program: parameters, buffers and constants by name. Tensors that share memory in Python
// share it here; entries with the same elements are one tensor. One thread at a time.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exported/archive.h"

namespace dtrain::exported {

struct StoredTensor {
  std::string name;  // name in state_dict()
  at::Tensor tensor;
  bool is_parameter = false;
};

struct StoredTensors {
  std::vector<StoredTensor> weights;            // the parameters and buffers of state_dict()
  std::map<std::string, at::Tensor> constants;  // by name; include buffers that are not persistent
};

// Converts a type number of the file, which is not c10::ScalarType. Error for an unknown number.
at::ScalarType scalar_type_of(std::int64_t number);

// Returns all tensors on the CPU. ConfigError: pickled tensors (subclasses of Tensor), custom objects, tensors without
// values (of the device meta), sizes and strides that do not fit the bytes.
StoredTensors read_tensors(const Archive& archive);

// Writes a copy of the archive with other values of its weights, atomically: `weights` maps names to tensors in the
// shapes and types of the file, on any device and in any memory layout. Error if a weight is missing.
void write_archive(const Archive& archive, const std::map<std::string, at::Tensor>& weights,
                   const std::filesystem::path& path);

}  // namespace dtrain::exported
