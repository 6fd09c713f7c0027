// Wording that the terminal texts and the report share.
#pragma once

#include <string>

#include "dtrain/analysis/summary.h"
#include "read/text.h"

namespace dtrain::analysis {

// Returns "1,200 batches", with the optimizer steps if these are fewer, of the attempt that the profile covers.
std::string batches_text(const RunSummary& summary);

// Returns the attempt of which the profile is, the last of several: "attempt 7 of 7: batches 3,919 to 4,100". Empty:
// there is one attempt.
std::string attempt_text(const RunSummary& summary);
// Returns "attempt 7"; empty: there is one attempt.
std::string attempt_name(const RunSummary& summary);

// Returns "96.1% of 12 min 05 s went into batches that count". Empty: there is one attempt, or it is not known.
std::string useful_time_text(const RunSummary& summary);

// Returns the extent for a heading: attempt_text(), or batches_text() if there is one attempt.
std::string extent_text(const RunSummary& summary);

// Returns "14 checkpoints were saved, 3 are kept, …; saving held training up for 20.3 ms in all, 2.33 ms of it
// copying". The time is that of the phase if there is a profile; otherwise it is that of the copies alone.
std::string checkpoints_text(const RunSummary& summary);

// Returns the batch size, "128", with the samples that are trained in a batch if these are fewer, and the samples of an
// optimizer step if batches are aggregated. Empty: not known.
std::string batch_size_text(const RunSummary& summary);

// Returns "0.47 GFLOP a batch, 82.1 GFLOP/s in float32: 39.4% MFU", or why there is no MFU; may be empty.
std::string compute_text(const RunSummary& summary);

// Returns the exposed communication of a run with several ranks, and its parts.
std::string exposed_text(const RunSummary& summary);

// Returns the parts of the buckets and of other collectives in exposed communication. Empty: there are none.
std::string collectives_text(const RunSummary& summary);

// Writes the table of the trial's scopes; nothing if there are none. Scopes within another one are indented below it.
void write_scopes(TextWriter& out, const RunSummary& summary);

// Returns the phases with the time of a scope: "train_batch.forward", or the first two with their shares.
std::string phases_text(const ScopeSummary& scope);
// Return the name without the enclosing scopes, and the number of these.
std::string name_in(const ScopeSummary& scope);
std::size_t depth_of(const ScopeSummary& scope);

}  // namespace dtrain::analysis
