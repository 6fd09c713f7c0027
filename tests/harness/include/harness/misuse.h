// Ranks that do not do the same, for the tests of any backend: what most ranks issue and what the last one issues in
// its place, and how an error must name the two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/comm/communicator.h"

namespace dtrain::test {

struct MisuseCase {
  // `data` has room for 5000 floats of every rank.
  using Issue = std::function<comm::Work(comm::Communicator&, float* data)>;
  std::string name;
  Issue most;
  Issue last;
  std::string most_text;
  std::string last_text;

  // "the ranks entered different operations as their operation 2: rank 0 …, rank 1 …"
  std::string text(std::uint64_t sequence, int world_size) const;
};

std::vector<MisuseCase> misuse_cases();

}  // namespace dtrain::test
