// A tar shard, whose samples are read as bytes.
#include "dtrain/data/shards.h"

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::shards(Input input) {
  const InputFile file(input);
  try {
    const auto source = data::load_shards(file.path().string());
    for (std::int64_t sample = 0; sample < source->size(); ++sample) {
      source->read({}, sample);
      source->where(sample);
    }
  } catch (const DataError&) {
  }
}
