// The ledger of this user on this machine (docs/launching.md says where it is).
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::run {

// As Ledger::open.
scheduler::Ledger open_user_ledger(const Clock& clock);

}  // namespace dtrain::run
