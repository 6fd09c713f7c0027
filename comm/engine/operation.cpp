#include "engine/operation.h"

#include "dtrain/base/error.h"
#include "engine/engine.h"

namespace dtrain::comm {

bool Operation::test() {
  if (!failed_.empty()) throw CommError(failed_);
  if (!complete_) engine_->progress();
  return complete_;
}

void Operation::wait() {
  if (complete_) return;
  if (!failed_.empty()) throw CommError(failed_);
  engine_->wait_for(*this);
}

std::vector<MissingRank> Operation::missing() const {
  return complete_ || !engine_ ? std::vector<MissingRank>{} : engine_->missing_of(*this);
}

}  // namespace dtrain::comm
