// The attempts and the checkpoints of a run, from events.jsonl. Plain values; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

// One start of all ranks.
struct AttemptAccount {
  int attempt = 1;
  double started_s = 0;                  // seconds since 1970
  std::optional<double> ended_s;         // seconds since 1970; empty: it has not ended, or its end was not recorded
  std::int64_t from_batch = 0;           // batches done when it began
  std::optional<std::int64_t> to_batch;  // the last batch in an event of its ranks or checkpoints; empty: there is none
  std::string end;                       // the reason for its end; empty: it has not ended
  double seen_s = 0;                     // when its last event happened, in seconds since 1970
};

// The state of a checkpoint.
enum class CheckpointFate {
  kKept,
  kDeleted,   // by retention, or by a user
  kReplaced,  // the same batch was saved again
};
std::string word_of(CheckpointFate fate);  // "kept"

// A checkpoint that has become durable.
struct CheckpointAccount {
  std::int64_t step = 0, epoch = 0;  // batches done; from 0
  double time_s = 0;                 // when it became durable, in seconds since 1970
  std::string path, reason;          // "period", "validation", "stop", "end"
  std::int64_t bytes = 0;
  double copy_s = 0;               // of the rank that took longest to copy its state
  double wait_s = 0, write_s = 0;  // seconds in which the saver waited for ranks and hosts; seconds of its writing
  int attempt = 0;                 // 0: not known
  std::string metric;              // searcher.metric; empty: it was not validated
  std::optional<double> metric_value;
  CheckpointFate fate = CheckpointFate::kKept;
};

// A save that came late or failed.
struct SaveTrouble {
  std::int64_t step = 0;
  bool failed = false;  // false: it was delayed
  bool retried = false;
  std::string cause;
};

struct RunHistory {
  std::vector<AttemptAccount> attempts;
  std::vector<CheckpointAccount> checkpoints;
  std::vector<SaveTrouble> troubles;

  double copy_s() const;          // of all checkpoints together
  double longest_copy_s() const;  // the longest copy of one checkpoint
  // Marks checkpoints that are no longer in their folder as deleted. If the folder itself does not exist, for example
  // on another machine, only events count.
  void look_into_storage();
  // Return one of the kept checkpoints: the newest, from which the run goes on, or the best by the metric of the newest
  // one that has a metric (of equals the earlier). Null: there is none.
  const CheckpointAccount* latest() const;
  const CheckpointAccount* best(bool smaller_is_better) const;
};

RunHistory history_of(std::span<const Json> events);
// Reads events.jsonl of the run. If the file is missing, the history is empty.
RunHistory read_history(const std::filesystem::path& run_dir);

Json to_json(const AttemptAccount& attempt);
Json to_json(const CheckpointAccount& checkpoint);
Json to_json(const SaveTrouble& trouble);

// "12 to 30"
std::string batches_text(const AttemptAccount& attempt);
// Returns in one line why the attempt ended: "rank 0 could not start: … (and 5 more lines)".
std::string end_text(const AttemptAccount& attempt);
// "a checkpoint of batch 40 failed and was tried again: …"
std::string text_of(const SaveTrouble& trouble);

}  // namespace dtrain::analysis
