// An image file and a label file, plain or gzip.
#include "dtrain/data/data_sets.h"

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::idx(Input input) {
  const auto [images, labels] = split(input);
  const InputFile image_file(images), label_file(labels);
  try {
    read_all(*data::read_idx(image_file.path(), label_file.path()));
  } catch (const DataError&) {
  }
}
