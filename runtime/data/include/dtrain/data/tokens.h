// A flat file of token ids, no header, little-endian, as tokenizing scripts write it (for example with numpy's tofile).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

enum class TokenType : std::uint8_t { kUint16, kUint32, kInt32, kInt64 };

// "features": int64 [L], and "target": int64 [L], the tokens one further on. Sample i is tokens i*L to i*L+L; tokens
// after the last whole sample are not used. Read from the file sample by sample: the ranks of a host
// share the system's page cache, so a file larger than memory works too. DataError names file and offset: fewer tokens
// than one sample, a size that is no multiple of a token's; while reading: a negative id, a file that has become
// shorter.
std::shared_ptr<Dataset> load_tokens(const std::filesystem::path& file, TokenType type, std::int64_t sequence_length);

}  // namespace dtrain::data
