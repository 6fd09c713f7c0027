#include "dtrain/analysis/run_history.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/profile/run_records.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr auto kPreempted = static_cast<std::int64_t>(ExitCode::kPreempted);

// Takes the events in their order.
class HistoryReader {
 public:
  void add(const Json& event) {
    const std::string what = text(event, "event");
    const double time = seconds_of_utc(text(event, "time"));
    if (what == "attempt_started") return begin(event, time);
    if (what == "checkpoint_saved") add_checkpoint(event, time);
    if (what == "checkpoint_validated") add_metric(event);
    if (what == "checkpoint_failed" || what == "checkpoint_delayed") add_trouble(event, what == "checkpoint_failed");
    if (history_.attempts.empty()) return;
    AttemptAccount& now = history_.attempts.back();
    now.seen_s = std::max(now.seen_s, time);
    const bool names_batch = what == "rank_finished" || what == "rank_failed" || what == "rank_stopped" ||
                             what == "checkpoint_saved" || what == "attempt_failed";
    if (names_batch && event.contains("step")) {  // a rank without a batch gives -1
      now.to_batch = std::max({now.to_batch.value_or(0), now.from_batch, integer(event, "step")});
    }
    if (what == "interrupted") interrupted_ = text(event, "signal");
    if (what == "rank_running" || what == "resumed") now.trains_s = time;
    // The ranks on several hosts may have found a later state in memory than the launcher knew of.
    if (what == "resumed") now.from_batch = integer(event, "step", now.from_batch);
    if (what == "recovered") {
      now.recovery = {integer(event, "batches_again"), number(event, "seconds"), number(event, "lost_s")};
    }
    if (what == "attempt_failed") {
      now.failed = true;
      now.counts_batches = event.contains("step");
      end(time, text(event, "cause"));
    }
    if (what == "attempt_stopped") end(time, text(event, "reason"));
    if (what == "run_ended") end_run(event, time);
  }

  RunHistory take() { return std::move(history_); }

 private:
  void begin(const Json& event, double time) {
    if (!history_.attempts.empty() && history_.attempts.back().end.empty()) {
      history_.attempts.back().end = "it ended without a report";
    }
    interrupted_.clear();
    history_.attempts.push_back({.attempt = static_cast<int>(integer(event, "attempt", 1)),
                                 .started_s = time,
                                 .from_batch = integer(event, "step"),
                                 .seen_s = time});
  }

  void end(double time, const std::string& why) {
    AttemptAccount& now = history_.attempts.back();
    if (!now.end.empty()) return;
    now.ended_s = time;
    now.end = why;
  }

  void end_run(const Json& event, double time) {
    const std::string cause = text(event, "cause");
    // A signal to a rank, and not to the launcher, has no event of its own; exit code 75 means SIGTERM.
    if (interrupted_.empty() && integer(event, "exit_code") == kPreempted) interrupted_ = "SIGTERM";
    const std::string by = interrupted_.empty() ? "" : " by " + interrupted_;
    end(time, cause.empty() ? text(event, "state") + by : cause);
  }

  void add_checkpoint(const Json& event, double time) {
    for (CheckpointAccount& checkpoint : history_.checkpoints) {
      if (checkpoint.step != integer(event, "step") || checkpoint.path != text(event, "path")) continue;
      if (checkpoint.fate == CheckpointFate::kKept) checkpoint.fate = CheckpointFate::kReplaced;
    }
    const auto value = event.find("metric_value");
    history_.checkpoints.push_back({.step = integer(event, "step"),
                                    .epoch = integer(event, "epoch"),
                                    .time_s = time,
                                    .path = text(event, "path"),
                                    .reason = text(event, "reason"),
                                    .bytes = integer(event, "bytes"),
                                    .copy_s = number(event, "copy_s"),
                                    .wait_s = number(event, "wait_s"),
                                    .write_s = number(event, "write_s"),
                                    .attempt = history_.attempts.empty() ? 0 : history_.attempts.back().attempt,
                                    .metric = text(event, "metric"),
                                    .metric_value = value == event.end() ? std::nullopt : number_of(*value),
                                    .fate = CheckpointFate::kKept});
    for (const Json& name : list_at(event, "deleted")) {
      if (name.is_string()) mark_deleted(name.get<std::string>());
    }
  }

  // A validation beside the training has ended after the checkpoint was saved.
  void add_metric(const Json& event) {
    const auto value = event.find("metric_value");
    for (CheckpointAccount& checkpoint : history_.checkpoints) {
      if (checkpoint.step != integer(event, "step") || checkpoint.path != text(event, "path")) continue;
      checkpoint.metric = text(event, "metric");
      checkpoint.metric_value = value == event.end() ? std::nullopt : number_of(*value);
    }
  }

  // `name`: the folder's name, "step-120".
  void mark_deleted(const std::string& name) {
    for (CheckpointAccount& checkpoint : history_.checkpoints) {
      if (checkpoint.fate == CheckpointFate::kKept && "step-" + std::to_string(checkpoint.step) == name) {
        checkpoint.fate = CheckpointFate::kDeleted;
      }
    }
  }

  void add_trouble(const Json& event, bool failed) {
    history_.troubles.push_back({.step = integer(event, "step"),
                                 .failed = failed,
                                 .retried = value_at<bool>(event, "retried").value_or(false),
                                 .cause = text(event, "cause")});
  }

  RunHistory history_;
  std::string interrupted_;  // the cause of this attempt's interruption
};

}  // namespace

std::string word_of(CheckpointFate fate) {
  return fate == CheckpointFate::kKept ? "kept" : fate == CheckpointFate::kDeleted ? "deleted" : "replaced";
}

double RunHistory::copy_s() const {
  double sum = 0;
  for (const CheckpointAccount& checkpoint : checkpoints) sum += checkpoint.copy_s;
  return sum;
}

double RunHistory::longest_copy_s() const {
  double longest = 0;
  for (const CheckpointAccount& checkpoint : checkpoints) longest = std::max(longest, checkpoint.copy_s);
  return longest;
}

std::optional<UsefulTime> RunHistory::useful_time(const std::optional<double>& now_s) const {
  UsefulTime time;
  std::optional<double> failed_s;  // the first failure since the last new batch
  bool trained = false;
  const AttemptAccount* before = nullptr;
  for (const AttemptAccount& attempt : attempts) {
    const bool recovers = before != nullptr && before->failed;
    if (recovers && !before->counts_batches) return std::nullopt;
    const bool goes_on = now_s && !attempt.ended_s && &attempt == &attempts.back();
    const double end_s = goes_on ? std::max(*now_s, attempt.started_s) : attempt.ended_s.value_or(attempt.seen_s);
    time.wall_s += end_s - (recovers ? before->ended_s.value_or(before->seen_s) : attempt.started_s);
    double lost_s = 0;
    if (recovers && attempt.recovery) {
      // What was lost before this attempt began was not counted as useful there.
      lost_s = attempt.recovery->lost_s;
      failed_s.reset();
    } else if (recovers) {
      if (!failed_s) failed_s = before->ended_s.value_or(before->seen_s);
    } else {
      failed_s.reset();
      lost_s = attempt.trains_s.value_or(end_s) - attempt.started_s;
    }
    trained = trained || attempt.trains_s || attempt.recovery;
    time.useful_s -= lost_s;
    if (failed_s && (goes_on || &attempt == &attempts.back())) time.useful_s -= end_s - *failed_s;
    before = &attempt;
  }
  if (!trained || time.wall_s <= 0) return std::nullopt;
  time.useful_s = std::clamp(time.wall_s + time.useful_s, 0.0, time.wall_s);
  return time;
}

void RunHistory::look_into_storage() {
  for (CheckpointAccount& checkpoint : checkpoints) {
    const std::filesystem::path path = checkpoint.path;
    std::error_code code;
    if (checkpoint.fate != CheckpointFate::kKept || !std::filesystem::is_directory(path.parent_path(), code)) continue;
    if (!std::filesystem::exists(path, code) && !code) checkpoint.fate = CheckpointFate::kDeleted;
  }
}

const CheckpointAccount* RunHistory::latest() const {
  const CheckpointAccount* latest = nullptr;
  for (const CheckpointAccount& checkpoint : checkpoints) {
    if (checkpoint.fate == CheckpointFate::kKept && (!latest || checkpoint.step >= latest->step)) latest = &checkpoint;
  }
  return latest;
}

const CheckpointAccount* RunHistory::best(bool smaller_is_better) const {
  const auto newest = std::find_if(checkpoints.rbegin(), checkpoints.rend(), [](const CheckpointAccount& checkpoint) {
    return checkpoint.metric_value.has_value();
  });
  const CheckpointAccount* best = nullptr;
  for (const CheckpointAccount& checkpoint : checkpoints) {
    if (checkpoint.fate != CheckpointFate::kKept || !checkpoint.metric_value || checkpoint.metric != newest->metric)
      continue;
    const bool better = !best || (smaller_is_better ? *checkpoint.metric_value < *best->metric_value
                                                    : *checkpoint.metric_value > *best->metric_value);
    if (better || (*checkpoint.metric_value == *best->metric_value && checkpoint.step < best->step)) best = &checkpoint;
  }
  return best;
}

RunHistory history_of(std::span<const Json> events) {
  HistoryReader reader;
  for (const Json& event : events) reader.add(event);
  return reader.take();
}

RunHistory read_history(const std::filesystem::path& run_dir) {
  HistoryReader reader;
  profile::read_events(run_dir, [&](const Json& event) { reader.add(event); });
  return reader.take();
}

Json to_json(const AttemptAccount& attempt) {
  return {{"attempt", attempt.attempt},
          {"started_s", attempt.started_s},
          {"ended_s", or_null(attempt.ended_s)},
          {"from_batch", attempt.from_batch},
          {"to_batch", or_null(attempt.to_batch)},
          {"end", attempt.end.empty() ? Json() : Json(attempt.end)},
          {"batches_again", attempt.recovery ? Json(attempt.recovery->batches_again) : Json()},
          {"recovery_s", attempt.recovery ? Json(attempt.recovery->seconds) : Json()}};
}

Json to_json(const CheckpointAccount& checkpoint) {
  return {{"step", checkpoint.step},         {"epoch", checkpoint.epoch},
          {"time_s", checkpoint.time_s},     {"path", checkpoint.path},
          {"reason", checkpoint.reason},     {"bytes", checkpoint.bytes},
          {"copy_s", checkpoint.copy_s},     {"wait_s", checkpoint.wait_s},
          {"write_s", checkpoint.write_s},   {"attempt", checkpoint.attempt},
          {"metric", checkpoint.metric},     {"metric_value", or_null(checkpoint.metric_value)},
          {"fate", word_of(checkpoint.fate)}};
}

Json to_json(const SaveTrouble& trouble) {
  return {{"step", trouble.step}, {"failed", trouble.failed}, {"retried", trouble.retried}, {"cause", trouble.cause}};
}

std::string batches_text(const AttemptAccount& attempt) {
  const std::string from = count_text(attempt.from_batch + 1);
  if (!attempt.to_batch) return "from " + from;
  if (*attempt.to_batch <= attempt.from_batch) return "none";
  return from + " to " + count_text(*attempt.to_batch);
}

std::string recovery_text(const AttemptAccount& attempt) {
  if (!attempt.recovery) return "-";
  return fmt::format("{} again, {}", count_text(attempt.recovery->batches_again, "batch"),
                     seconds_text(attempt.recovery->seconds));
}

std::string text_of(const UsefulTime& time) {
  return fmt::format("{} of {} went into batches that count", format_percent(time.share()), seconds_text(time.wall_s));
}

std::string end_text(const AttemptAccount& attempt) {
  if (attempt.end.empty()) return "it has not ended";
  const std::size_t end = attempt.end.find('\n');
  if (end == std::string::npos) return attempt.end;
  const auto more = std::count(attempt.end.begin(), attempt.end.end(), '\n');
  return fmt::format("{} (and {})", attempt.end.substr(0, end), count_of(more, "more line"));
}

std::string text_of(const SaveTrouble& trouble) {
  return fmt::format("a checkpoint of batch {} {}: {}", count_text(trouble.step),
                     !trouble.failed   ? "was delayed"
                     : trouble.retried ? "failed and was tried again"
                                       : "failed",
                     trouble.cause);
}

}  // namespace dtrain::analysis
