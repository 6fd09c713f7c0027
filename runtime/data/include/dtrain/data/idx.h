// IDX files (the MNIST format: http://yann.lecun.com/exdb/mnist), plain or gzip. The first bytes decide whether a file
// is gzip, not its name.
#pragma once

#include <filesystem>
#include <memory>

#include "dtrain/data/dataset.h"
#include "dtrain/data/host_share.h"

namespace dtrain::data {

// Images ("image": uint8, the file's dimensions without the first) and labels ("label": int64), whole set in memory,
// once per host. DataError names the file and the offset of what is wrong: magic number, type, truncated data, bytes
// after the end, counts that differ, damaged gzip data. Offsets count decompressed bytes where the file is compressed.
std::shared_ptr<Dataset> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                                  const HostShare& share = no_sharing());

}  // namespace dtrain::data
