// The header of a .npy file: magic number, version, and a Python literal that describes the array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "byte_source.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct NpyHeader {
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;  // at least one dimension, none of them 0
  std::uint64_t shape_at = 0;       // offset of the shape's text
  std::uint64_t bytes = 0;          // of the array
};

// Leaves the file at its first element. Compares the file's size with the header. DataError: see load_npy().
NpyHeader read_npy_header(ByteSource& file);
// Returns "the header promises 60000 x 28 x 28 float32".
std::string promise(const NpyHeader& header);

}  // namespace dtrain::data
