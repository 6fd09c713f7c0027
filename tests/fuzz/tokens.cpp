// The first byte is the token type and the end token, the second the sequence length, the rest the file.
#include "dtrain/data/data_sets.h"

#include "dtrain/base/error.h"
#include "dtrain/data/documents.h"
#include "support.h"

void dtrain::fuzz::tokens(Input input) {
  if (input.size() < 2) return;
  const InputFile file(input.subspan(2));
  const auto type = static_cast<data::TokenType>(input[0] % 4);
  try {
    read_all(*data::load_tokens(file.path(), type, input[1]));
  } catch (const DataError&) {
  }
  try {
    const data::PackTokens packs{.end_token = input[0] / 4, .positions = true, .documents = true};
    read_all(*data::packed_documents({{file.path()}, type, input[1]}, packs));
  } catch (const DataError&) {
  }
}
