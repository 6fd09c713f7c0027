#include "dtrain/run/version.h"

namespace dtrain::run {
std::string version() {
  return DTRAIN_VERSION;
}
}  // namespace dtrain::run
