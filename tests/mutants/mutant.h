// Which of the planted mistakes does this process make? mutants.py includes it in a copy of the sources.
#pragma once

#include <cstdlib>
#include <string_view>

#ifdef __CUDACC__  // what nvcc compiles runs on a GPU alone
__host__ __device__ inline bool makes_mistake(const char*) {
  return false;
}
#else
// Launches take their own variables away from the processes of a test, so the name does not begin as theirs do.
inline bool makes_mistake(std::string_view name) {
  static const char* const chosen = std::getenv("MUTANT_OF_DTRAIN");
  return chosen != nullptr && name == chosen;
}
#endif
