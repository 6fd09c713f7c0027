// Tar shards as WebDataset writes them.
#pragma once

#include <memory>
#include <string>

#include "dtrain/data/dataset.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {

// The samples of the shards that `pattern` names (train-*.tar, train-{0000..0146}.tar; sorted by name), in their order:
// "image", the bytes of the file (uint8 [bytes]), and "label" (int64). A sample is a picture, KEY.jpg, .jpeg or .png,
// and its class, KEY.cls, beside each other; other members are not read, hidden ones (._a.jpg, .DS_Store) neither, and
// standard error has a line about what belongs to no sample (README). Shards may have any numbers of samples, but
// each has one. The headers of all members are read once per host; then samples are read in blocks, which the loader
// shuffles. DataError names the file and the offset. Collective over the ranks of a host, as HostShare is.
std::shared_ptr<SampleSource> load_shards(const std::string& pattern, const HostShare& share = no_sharing());

}  // namespace dtrain::data
