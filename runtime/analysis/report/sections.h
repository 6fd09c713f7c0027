// The sections of the report, in their order. A file in sections/ has the sections of a topic. A section without data
// states what is missing and how to get it.
#pragma once

#include <string>

#include "dtrain/base/json.h"
#include "report/charts.h"
#include "report/page.h"

namespace dtrain::analysis::report {

void write_verdict(Page& page, const Input& input);      // throughput, efficiency, what costs most
void write_job(Page& page, const Input& input);          // processes, hosts and times
void write_learning(Page& page, const Input& input);     // loss, metrics and rates over batches and time
void write_checkpoints(Page& page, const Input& input);  // restarts, and the cost of saving
void write_waterfall(Page& page, const Input& input);    // from the ideal to the measured throughput
void write_roofline(Page& page, const Input& input);     // FLOPs, MFU, operators against their limits
void write_timeline(Page& page, const Input& input);     // each rank's phases over time
void write_stragglers(Page& page, const Input& input);   // ranks for which others waited
void write_collectives(Page& page, const Input& input);  // the time of the exchange
void write_what_if(Page& page, const Input& input);      // the predicted effects of changes
void write_system(Page& page, const Input& input);       // usage a host
void write_framework(Page& page, const Input& input);    // TRAIN, EVAL and others; phases
void write_operators(Page& page, const Input& input);    // by self time
void write_rules(Page& page, const Input& input);        // all rules in one table
void write_steps(Page& page, const Input& input);        // durations and outliers
void write_gpu_utilization(Page& page, const Input& input);
void write_balance(Page& page, const Input& input);
void write_data_loading(Page& page, const Input& input);
void write_batch_size(Page& page, const Input& input);
void write_cpu_bottlenecks(Page& page, const Input& input);
void write_io_bottlenecks(Page& page, const Input& input);
void write_memory(Page& page, const Input& input);
void write_completeness(Page& page, const Input& input);  // the gaps in these numbers

// --- a rule's result in words, for the section that shows the rule's input; any thread may call ---

// Returns the result of a rule; null: it was not evaluated.
const Finding* find_rule(const Input& input, const std::string& name);
// Writes the aim of a rule, its parameters, its counts, the number of triggers or why it does not apply, and its advice
// if it triggered. Writes nothing for a rule that was not evaluated.
void write_rule(Page& page, const Input& input, const std::string& name);

// Returns the chart of each rank's phases over time: the spec of assets/50-timeline.js; null: no step was recorded.
Json timeline_spec(const Input& input);

}  // namespace dtrain::analysis::report
