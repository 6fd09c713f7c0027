// A features file and a target file.
#include "dtrain/data/data_sets.h"

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::npy(Input input) {
  const auto [features, target] = split(input);
  const InputFile features_file(features), target_file(target);
  try {
    read_all(*data::load_npy(features_file.path(), target_file.path()));
  } catch (const DataError&) {
  }
}
