// A wait has reached its deadline. Unlike other errors of communication, this one has no known cause: no message
// arrived.
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
