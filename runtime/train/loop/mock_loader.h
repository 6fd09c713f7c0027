// `--mock loader`: the batches of a source that reads only once. Training thread.
#pragma once

#include "dtrain/train/loader.h"

namespace dtrain::train {

// The first batch of `source`, as often as an epoch of it has batches (without end where that is not known). A trial
// that writes into its batch sees what it has written.
Loader repeat_first_batch(Loader source);

}  // namespace dtrain::train
