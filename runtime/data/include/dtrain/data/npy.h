// Arrays that numpy.save wrote (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), plain or gzip.
#pragma once

#include <filesystem>
#include <memory>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// Fields "features" and "target", with the types of the files. The first dimension of both files counts samples; the
// rest is the shape of a sample. The whole set is in memory, once per host. Versions 1.0 to 3.0, C order,
// little-endian: uint8, int32, int64, float32, float64. DataError names the file, the offset, and the remedy: for other
// types, byte orders or memory orders, object and structured arrays, truncated data, bytes after the end, and different
// counts.
std::shared_ptr<Dataset> load_npy(const std::filesystem::path& features, const std::filesystem::path& target,
                                  const HostShare& share = no_sharing());

// Does the same as load_npy(), but samples are read from the files on demand, so the files may be larger than memory.
// DataError also for gzip data, and while reading for a file that has become shorter.
std::shared_ptr<Dataset> open_npy(const std::filesystem::path& features, const std::filesystem::path& target);

}  // namespace dtrain::data
