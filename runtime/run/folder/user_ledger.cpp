#include "dtrain/run/user_ledger.h"

#include "environment.h"

namespace dtrain::run {

scheduler::Ledger open_user_ledger(const Clock& clock) {
  return scheduler::Ledger::open(state_folder(process_variables()), clock);
}

}  // namespace dtrain::run
