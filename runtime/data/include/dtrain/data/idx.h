// IDX files (the MNIST format: http://yann.lecun.com/exdb/mnist), plain or gzip.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "dtrain/base/shared_memory.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

// Makes memory once per host: runs `make` on one local rank and maps its result on the others.
using HostShare = std::function<SharedMemory(const std::string& name, const std::function<SharedMemory()>& make)>;
// For programs of one rank: `make` runs right here.
HostShare no_sharing();

// Images ("image": uint8, the file's dimensions without the first) and labels ("label": int64), whole set in memory,
// once per host. DataError names the file and the offset of what is wrong: magic number, type, truncated data, bytes
// after the end, counts that differ.
std::shared_ptr<Dataset> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                                  const HostShare& share = no_sharing());

}  // namespace dtrain::data
