// A refusal that every rank comes to by the same facts, after they were exchanged, and throws alike: the run's, not the
// fault of the rank that happens to say it first. RankSession::start() and fail() tell it so. Plain value; any thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::run {

class AgreedError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace dtrain::run
