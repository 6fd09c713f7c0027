// Preloaded into a rank, makes its dtrain look like another version: for the tests of `dtrain launch` over several
// hosts.
#include "dtrain/rank/libtorch.h"

namespace dtrain::run {

std::string version() {
  return "0.0.7";
}

}  // namespace dtrain::run
