// The table of the trial's scopes, for the summary and for dtrain analyze.
#pragma once

#include <string>

#include "dtrain/analysis/summary.h"
#include "text/text_writer.h"

namespace dtrain::analysis {

// Writes nothing if the trial has no scopes. Scopes within another one are indented below it.
void write_scopes(TextWriter& out, const RunSummary& summary);

// Returns the phases with the time of a scope: "train_batch.forward", or the first two with their shares.
std::string phases_text(const ScopeSummary& scope);
// Return the name without the enclosing scopes, and the number of these.
std::string name_in(const ScopeSummary& scope);
std::size_t depth_of(const ScopeSummary& scope);

}  // namespace dtrain::analysis
