// Wording that the terminal texts and the report share.
#pragma once

#include <string>

#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

// "1,200 batches", with the optimizer steps where these are fewer; of the attempt that the profile is of.
std::string batches_text(const RunSummary& summary);

// Of a run with several attempts, of which the last one has left its profile here: "attempt 7 of 7: batches 3,919 to
// 4,100". Empty: there is one attempt.
std::string attempt_text(const RunSummary& summary);
// "attempt 7", or empty where there is one attempt.
std::string attempt_name(const RunSummary& summary);

// What a heading says about how much it covers: attempt_text(), or batches_text() where there is one attempt.
std::string extent_text(const RunSummary& summary);

// "14 checkpoints were saved, 3 are kept, …; saving held training up for 20.3 ms in all, 2.33 ms of it copying". The
// time is that of the phase where there is a profile, and of the copies alone where there is none.
std::string checkpoints_text(const RunSummary& summary);

// "128", and what becomes of it: what is trained in a batch where that is less, and what an optimizer step sees where
// batches are aggregated. Empty: not known.
std::string batch_size_text(const RunSummary& summary);

// "0.47 GFLOP a batch, 82.1 GFLOP/s in float32: 39.4% MFU", with what is missing where there is no MFU; or empty.
std::string compute_text(const RunSummary& summary);

// Of a run with several ranks: what computing does not hide, and what it consists of.
std::string exposed_text(const RunSummary& summary);

// How the buckets' exposed time and that of other collectives make up the exposed communication. Empty: there are none.
std::string collectives_text(const RunSummary& summary);

}  // namespace dtrain::analysis
