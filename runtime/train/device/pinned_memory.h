// Page-locked host memory, from which a GPU copies while the host goes on. Any thread, once the device has been opened.
#pragma once

#include "dtrain/data/loader.h"

namespace dtrain::train {

// Memory of libtorch's own allocator of page-locked memory, which keeps what a copy still reads until the copy is done.
data::BatchAllocator pinned_allocator();

}  // namespace dtrain::train
