// Preloaded into a rank, makes its dtrain look like another version: for the tests of `dtrain launch` over several
// hosts.
#include <string>

namespace dtrain::rank {

std::string version() {
  return "0.0.7";
}

}  // namespace dtrain::rank
