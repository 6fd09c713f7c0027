// A flat file of token ids, no header, little-endian, as tokenizing scripts write it (for example with numpy's tofile).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

enum class TokenType : std::uint8_t { kUint16, kUint32, kInt32, kInt64 };

// "features": int64 [L], and "target": int64 [L], which begins one token later. Sample i has the tokens i*L to i*L+L;
// tokens after the last complete sample are not used. Samples are read from the file one by one. The ranks of a host
// share the system's page cache, so the file may be larger than memory. DataError names the file and the offset: for
// fewer tokens than one sample, or a size that is no multiple of a token's; and while reading, for a negative id, or a
// file that has become shorter.
std::shared_ptr<Dataset> load_tokens(const std::filesystem::path& file, TokenType type, std::int64_t sequence_length);

}  // namespace dtrain::data
