// A wait that has lasted for its whole deadline. Unlike other failures of communication it needs no other cause: nobody
// has said anything all that time.
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
