// An error that every rank derives from the same exchanged facts and throws with the same text. RankSession::start()
// and fail() report it as an error of the run, not of the rank that reports it first. Plain value; any thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::run {

class AgreedError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace dtrain::run
