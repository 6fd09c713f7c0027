// Work that a rank's threads divide: those that libtorch computes with, so there are never more of them.
#pragma once

#include <cstdint>
#include <functional>

namespace dtrain::train {

// Calls `work` with ranges [begin, end) that together are [0, count), on as many threads as libtorch has but none with
// fewer than `least` elements; returns when all have ended. Where every range begins is a function of count, least and
// the number of threads. An exception of one of them comes out here. Any thread; inside of another call it is serial.
//
// Not at::parallel_for(): a file that is compiled without -fopenmp, as most are, gets a serial loop of that name.
void parallel_for(std::int64_t count, std::int64_t least,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& work);

}  // namespace dtrain::train
