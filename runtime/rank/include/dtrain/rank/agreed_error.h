// An error that all ranks throw with the same text, because they derive it from the same exchanged facts.
// RankSession::start() and fail() report it as an error of the run, not of one rank. Plain value; any thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::run {

class AgreedError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace dtrain::run
