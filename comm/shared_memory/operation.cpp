#include "shared_memory/operation.h"

#include "dtrain/base/error.h"
#include "shared_memory/communicator.h"

namespace dtrain::comm {

bool Operation::test() {
  if (!failed_.empty()) throw CommError(failed_);
  if (!complete_) communicator_->progress();
  return complete_;
}

void Operation::wait() {
  if (complete_) return;
  if (!failed_.empty()) throw CommError(failed_);
  communicator_->wait_for(*this);
}

std::vector<MissingRank> Operation::missing() const {
  return complete_ || !communicator_ ? std::vector<MissingRank>{} : communicator_->missing_of(*this);
}

}  // namespace dtrain::comm
