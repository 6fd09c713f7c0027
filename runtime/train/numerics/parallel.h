// Divides work among a rank's threads: libtorch's own threads are used, so that their number does not grow.
#pragma once

#include <cstdint>
#include <functional>

namespace dtrain::train {

// Calls `work` with ranges [begin, end) that together are [0, count), on at most as many threads as libtorch has, each
// with at least `least` elements; returns when all have ended. The ranges depend only on count, least and the number of
// threads. Passes on an exception of `work`. Any thread; inside of another call it is serial.
//
// at::parallel_for() does not do: in a file that is compiled without -fopenmp, as most are, it is a serial loop.
void parallel_for(std::int64_t count, std::int64_t least,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& work);

}  // namespace dtrain::train
