// A rank of bench_collectives: reduces what it is told to, when it is its turn, and says how long that took. Between
// turns it sleeps in a read, so that the others have the cores.
//
// Protocol, over two FIFOs a rank (contestant.h): "SUBJECT BYTES REPEATS SAMPLES\n" is answered by one line with
// SAMPLES times of one operation in nanoseconds, each the mean of REPEATS operations in a row; "0\n" ends it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace dtrain::bench {

struct Subject {
  std::function<float*(std::size_t bytes)> memory;
  std::function<void(float* data, std::size_t count)> all_reduce;  // a sum in place, blocking
  std::function<void()> barrier;
  bool reduces = true;  // its results are checked
};

void take_turns(const std::string& base, int rank, int ranks, const std::map<std::string, Subject>& subjects);

}  // namespace dtrain::bench
