// Samples that are ranges of tokens in files. Private to data.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/data/documents.h"
#include "dtrain/data/host_share.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {

// Returns samples of one value, "tokens": int64, 2 to sequence_length + 1 tokens of a document or of a piece of one,
// or, with `packs`, of as many consecutive documents as fit.
std::shared_ptr<SampleSource> token_ranges(const DocumentFiles& documents, std::int64_t end_token, bool packs,
                                           const HostShare& share);

}  // namespace dtrain::data
