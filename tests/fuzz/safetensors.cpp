// One file: as weights are read (every tensor), and as a data set is.
#include "dtrain/data/safetensors.h"

#include <vector>

#include "dtrain/base/error.h"
#include "support.h"

void dtrain::fuzz::safetensors(Input input) {
  const InputFile file(input);
  try {
    const data::SafetensorsFile tensors(file.path());
    for (const auto& entry : tensors.entries()) {
      std::vector<std::byte> memory(entry.bytes);
      tensors.read(entry, memory);
    }
    read_all(*data::load_safetensors(file.path(), "features", "target"));
  } catch (const DataError&) {
  }
}
