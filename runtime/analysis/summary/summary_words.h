// Wording that the terminal texts and the report share.
#pragma once

#include <string>

#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

// "1,200 batches", with the optimizer steps where these are fewer.
std::string batches_text(const RunSummary& summary);

// "128", and what becomes of it: what is trained in a batch where that is less, and what an optimizer step sees where
// batches are aggregated. Empty: not known.
std::string batch_size_text(const RunSummary& summary);

// Of a run with several ranks: what computing does not hide, and what it consists of.
std::string exposed_text(const RunSummary& summary);

// How the buckets' exposed time and that of other collectives make up the exposed communication. Empty: there are none.
std::string collectives_text(const RunSummary& summary);

}  // namespace dtrain::analysis
