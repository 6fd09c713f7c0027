// `--mock loader`: the batches of a source that reads only once. Training thread.
#pragma once

#include "dtrain/train/loader.h"

namespace dtrain::train {

// Returns a loader that repeats the first batch of `source` for as many batches as an epoch has (without end if that
// number is not known). A trial that writes into its batch sees these writes in the next batch.
Loader repeat_first_batch(Loader source);

}  // namespace dtrain::train
