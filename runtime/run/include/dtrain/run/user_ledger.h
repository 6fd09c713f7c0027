// The ledger of this user on this machine (docs/launching.md has its place).
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::run {

// Throws as scheduler::Ledger::open() does.
scheduler::Ledger open_user_ledger(const Clock& clock);

}  // namespace dtrain::run
