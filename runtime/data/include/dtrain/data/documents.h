// The documents of token files (dtrain/data/data_sets.h) as samples: padded to the longest of a batch, or packed into
// rows of one length. A document is the tokens between two end tokens, including its own end token. The places of
// documents are found once per host, when the files are opened, by reading them from front to back: 16 bytes per
// sample.
//
// Documents are independent: the target of a position is the next token of the same document, and no target follows an
// end token. Documents of more than `sequence_length` + 1 tokens become several samples, each of which begins with the
// last token of the one before it; so every token but the first of a document is a target once. Documents of less than
// two tokens have no target: they are no samples, and in a packed row such an end token has a position without one.
//
// DataError names the file and the offset: those of load_tokens(); if no token is the end token; while reading, for a
// negative id, or a file that has become shorter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "dtrain/data/data_sets.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

struct DocumentFiles {
  std::vector<std::filesystem::path> files;  // one after the other
  TokenType type = TokenType::kUint16;
  std::int64_t sequence_length = 0;  // the most positions of a sample
};

// Each document is a sample. "features" and "target": int64 [L], where L is the longest of the batch, rounded up to
// `multiple_of`, at most to sequence_length; then, where they are wanted, "mask": int64 [L], 1 for a token and 0 for
// padding, and "lengths": int64, how many positions of the sample are no padding.
std::shared_ptr<Dataset> padded_documents(const DocumentFiles& documents, const PadToLongest& settings,
                                          const HostShare& share = no_sharing());

// Each row has as many whole documents as fit, in the order of the file, and is padded after them. "features" and
// "target": int64 [sequence_length]; then, where they are wanted, "positions": int64 [sequence_length], the place
// within the document or the piece of a long one, and "documents": int64 [sequence_length], the number of the document
// within the row. Both count from 0; in padding, positions are 0 and documents -1.
std::shared_ptr<Dataset> packed_documents(const DocumentFiles& documents, const PackTokens& settings,
                                          const HostShare& share = no_sharing());

}  // namespace dtrain::data
