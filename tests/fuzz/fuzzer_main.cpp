// What libFuzzer calls; DTRAIN_FUZZ_TARGET is the name of the target this program is for.
#include <cstddef>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dtrain::fuzz::DTRAIN_FUZZ_TARGET({data, size});
  return 0;
}
