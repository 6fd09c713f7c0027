// The text of where a loader stands, as a checkpoint has it.
#include "dtrain/base/error.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/loader.h"
#include "targets.h"

void dtrain::fuzz::loader_state(Input input) {
  static const auto dataset = data::make_synthetic({.samples = 50, .features = 1});
  try {
    const data::LoaderState state =
        data::LoaderState::parse(std::string(reinterpret_cast<const char*>(input.data()), input.size()));
    data::SampleLoader loader(dataset, {.batch_size = 4, .seed = state.seed, .workers = 0});
    loader.restore(state);
    while (loader.next()) {
    }
  } catch (const DataError&) {
  }
}
