// A rank's place among its peers. Plain values, filled in by runtime/rank/environment.cpp.
#pragma once

#include <string>

namespace dtrain::comm {

struct World {
  int rank = 0;        // 0 .. size-1
  int size = 1;        // the world size
  int local_rank = 0;  // 0 .. local_size-1, among the ranks of the same host
  int local_size = 1;
  std::string host;  // the agent id given by the launcher, else the host's identity (dtrain/host/identity.h)
};

}  // namespace dtrain::comm
