// A refusal that every rank derives from the same exchanged facts and throws alike: an error of the run, not of the
// rank that reports it first. RankSession::start() and fail() report it so. Plain value; any thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::run {

class AgreedError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace dtrain::run
