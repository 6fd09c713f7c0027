// What the ledger of tasks holds as text: a task's request, and the slots that it has. The first byte says which.
#include <cstdlib>
#include <string>

#include "dtrain/base/error.h"
#include "ledger_impl.h"
#include "targets.h"

void dtrain::fuzz::ledger(Input input) {
  if (input.empty()) return;
  const std::string text(reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1);
  if (input[0] % 2 == 1) {
    (void)scheduler::to_text(scheduler::claim_of(text));
    return;
  }
  try {
    const std::string written = scheduler::to_text(scheduler::request_of(text));
    if (scheduler::to_text(scheduler::request_of(written)) != written) std::abort();
  } catch (const DataError&) {
  }
}
