// Page-locked host memory, from which a GPU copies while the host continues. Any thread, once the device is open.
#pragma once

#include "dtrain/data/loader.h"

namespace dtrain::train {

// Returns libtorch's allocator of page-locked memory, which reuses memory only after the copies that read it.
data::BatchAllocator pinned_allocator();

}  // namespace dtrain::train
