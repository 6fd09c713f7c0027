// How the predictions of what_if.h are made.
//
// A step is taken to last as long as the slowest rank's own work in it and the exchange's exposed part, which is what
// the rank waits that comes last. A change takes something off either; what the step loses by that is what it would
// gain, and is subtracted from the step as measured.
#pragma once

#include "dtrain/analysis/what_if.h"
#include "measure/evidence.h"
#include "predict/predictor.h"

namespace dtrain::analysis {

// `tried`: the run that has tried replicated and sharded updates, this one or one of the same experiment.
WhatIf predict(const Evidence& evidence, const RunProfile& tried);

// What the machine's limits promise of other types and memory formats.
void predict_computing(const Evidence& evidence, const Predictor& predictor, WhatIf& into);

// The same work on more ranks.
void predict_scaling(const Evidence& evidence, WhatIf& into);

}  // namespace dtrain::analysis
