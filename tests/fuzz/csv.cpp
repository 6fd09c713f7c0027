// A table: the first byte chooses how it is read.
#include "dtrain/data/data_sets.h"

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::csv(Input input) {
  if (input.empty()) return;
  const unsigned choice = input[0];
  const char delimiters[] = {',', ';', '\t', ' '};
  const data::CsvOptions options{(choice & 1) != 0, delimiters[choice >> 1 & 3], (choice & 8) != 0 ? "b" : "",
                                 (choice & 16) != 0};
  const InputFile file(input.subspan(1));
  try {
    read_all(*data::load_csv(file.path(), options));
  } catch (const DataError&) {
  }
}
