// A wait that reached its deadline. Unlike other failures of communication it has no cause of its own: no message
// arrived in all that time.
#pragma once

#include <string>

#include "dtrain/base/error.h"

namespace dtrain::comm {

class TimedOut : public CommError {
 public:
  using CommError::CommError;
  explicit TimedOut(const CommError& error) : CommError(error.what(), error.remedy()) {}
};

}  // namespace dtrain::comm
