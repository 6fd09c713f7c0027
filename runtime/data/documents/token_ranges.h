// Samples that are ranges of tokens in files: which tokens belong to each, and their bytes. Private to data.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/data/documents.h"
#include "dtrain/data/host_share.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {

// One value a sample: "tokens", int64, from 2 to sequence_length + 1 of them: a document or a piece of one, or with
// `packs` as many documents behind each other as fit.
std::shared_ptr<SampleSource> token_ranges(const DocumentFiles& documents, std::int64_t end_token, bool packs,
                                           const HostShare& share);

}  // namespace dtrain::data
