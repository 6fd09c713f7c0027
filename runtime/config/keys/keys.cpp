#include "dtrain/config/keys.h"

#include <algorithm>

namespace dtrain::config {

bool Only::met() const {
  return std::find(owners.begin(), owners.end(), chosen) != owners.end();
}

void Keys::only(const Only&, const Declare& declare) {
  declare(*this);
}

}  // namespace dtrain::config
