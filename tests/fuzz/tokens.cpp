// The first byte is the token type, the second the sequence length, the rest the file.
#include "dtrain/data/tokens.h"

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::tokens(Input input) {
  if (input.size() < 2) return;
  const InputFile file(input.subspan(2));
  try {
    read_all(*data::load_tokens(file.path(), static_cast<data::TokenType>(input[0] % 4), input[1]));
  } catch (const DataError&) {
  }
}
