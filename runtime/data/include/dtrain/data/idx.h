// IDX files (the MNIST format: http://yann.lecun.com/exdb/mnist), plain or gzip. The first bytes decide whether a file
// is gzip, not its name.
#pragma once

#include <filesystem>
#include <memory>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// Images ("image": uint8, the file's dimensions without the first) and labels ("label": int64). The whole set is in
// memory, once per host. DataError names the file, the offset and the fault: magic number, type, truncated data, bytes
// after the end, different counts, damaged gzip data. In a compressed file, offsets count decompressed bytes.
std::shared_ptr<Dataset> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                                  const HostShare& share = no_sharing());

}  // namespace dtrain::data
