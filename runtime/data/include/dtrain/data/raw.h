// Arrays without a header: samples one after the other, C order, little-endian, as numpy's tofile() writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct RawArray {
  std::filesystem::path file;
  ElementType type = ElementType::kUint8;
  std::vector<std::int64_t> shape;  // of a sample; empty: a number
};

// Fields "features" and "target". Samples are read from the files when they are needed, so the files may be larger than
// memory. DataError names the file and the offset: for a size that is no whole number of samples, different numbers of
// samples, no sample; and while reading, for a file that has become shorter.
std::shared_ptr<Dataset> open_raw(const RawArray& features, const RawArray& target);

}  // namespace dtrain::data
