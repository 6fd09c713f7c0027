// A round with virtual ranks (reproducibility.virtual_ranks): this rank trains the batches of its logical ranks, one
// after the other. The trial sees the number, the batch, the random streams and the buffers of one at a time.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "loop/logical_batches.h"
#include "loop/training_loop.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

namespace {

// The number of threads decides about the order of sums within operators.
void check_thread_count(int wanted) {
  const int threads = at::get_num_threads();
  if (threads == wanted) return;
  throw ConfigError("the trial computes with " + std::to_string(threads) +
                        " threads, and reproducibility.virtual_rank_threads is " + std::to_string(wanted),
                    "set the number by that key, and not in the program: it decides about the last bits");
}

}  // namespace

TrainingLoop::Outcome TrainingLoop::run_virtual_round() {
  const rank::LogicalRanks ranks = session_.logical();
  begin_record();
  std::vector<std::optional<Batch>> batches;
  {
    const PhaseScope phase(session_.recorder(), Phase::kDataloaderNext);
    for (int logical = ranks.begin; logical < ranks.end; ++logical) {
      session_.act_as(logical);
      seed(Draws::kData);
      if (batches.emplace_back(loader_->next())) record_loader(*batches.back());
    }
  }
  session_.act_as(ranks.begin);
  const bool any = std::any_of(batches.begin(), batches.end(), [](const auto& batch) { return batch.has_value(); });
  step_.announce(any, wishes(/*fits_graph=*/false));
  if (!any) {
    const Round round = step_.agree();
    if (round.active == 0) return end_of_epoch(round);
  }
  step_.begin_batch();
  std::int64_t samples = 0;
  {
    const auto counting = measured_.counted_batches.begin();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      session_.act_as(ranks.begin + static_cast<int>(i));
      samples += train_logical_rank(batches[i]);
    }
  }
  measured_.counted_batches.end(position_.batches + 1, samples);
  session_.act_as(ranks.begin);
  const bool stepped = step_.end_batch();
  ++position_.batches;
  ++position_.epoch_batches;
  progress_.batch_done();
  callbacks_.tell<&Callback::after_batch>(returned_);
  return end_round(samples, stepped);
}

std::int64_t TrainingLoop::train_logical_rank(std::optional<Batch>& batch) {
  const int logical = session_.logical().current;
  check_thread_count(session_.experiment().virtual_rank_threads);
  step_.begin_logical_rank(logical);
  if (batch) {
    const LogScope logging(context_);
    prepare_batch(*batch);
    seed(Draws::kTraining);
    const PhaseScope phase(session_.recorder(), Phase::kForward);
    returned_ = call_trial(*batch);
    metrics_.keep(returned_, batch->samples);
    context_.warn_of_unread_keys();
    keep_logged(*batch);
  }
  check_thread_count(session_.experiment().virtual_rank_threads);
  step_.end_logical_rank(logical);
  const std::int64_t samples = batch ? batch->samples : 0;
  batch.reset();  // its memory may serve the next one
  return samples;
}

TrialState TrainingLoop::trial_state() {
  TrialState state = trial_.save_state();
  if (!session_.logical().virtuals || (state.tensors.empty() && state.values.empty())) return state;
  throw ConfigError("the trial has a state of its own (save_state()), which is not supported yet with virtual ranks",
                    "leave reproducibility.virtual_ranks out");
}

void TrainingLoop::visit_logical_ranks(StateVisitor& visitor) {
  struct LogicalRank {
    TrainingMetrics& metrics;
    TrainingStep& step;
    std::size_t index;
    bool has_metrics;  // those of another run are not taken over
    void visit(StateVisitor& visitor) {
      if (has_metrics) metrics.visit_logical_rank(index, visitor);
      step.visit_logical_rank(index, visitor);
    }
  };
  struct AllOfThisRank {
    const rank::LogicalRanks ranks;
    const LogicalRank first;
    void visit(StateVisitor& visitor) const {
      for (int logical = ranks.begin; logical < ranks.end; ++logical) {
        LogicalRank rank = first;
        rank.index = static_cast<std::size_t>(logical - ranks.begin);
        visitor.part(std::to_string(logical), rank);
      }
    }
  };
  AllOfThisRank all{session_.logical(), {metrics_, step_, 0, !other_run_has_same_trial_}};
  visitor.part("logical", all);
  if (visitor.replaces()) step_.logical_buffers()->load(0);
}

void refuse_beside_virtual_ranks(rank::RankSession& session, TrialContext& context) {
  const auto refuse = [](const std::string& what) {
    throw rank::AgreedError(what + " not supported yet with reproducibility.virtual_ranks",
                            "leave one of both out (docs/reproducibility.md)");
  };
  const TrialContext::Wrapped& wrapped = context.wrapped();
  if (session.mock().any()) refuse("mock runs are");
  if (context.device().is_cuda()) refuse("GPUs are");
  if (!wrapped.models.empty()) refuse("several models are");
  if (wrapped.own_update) refuse("the trial's own optimizer is");
  if (context.around_the_loop().callbacks.size() > context.around_the_loop().own_callbacks) refuse("callbacks are");
  if (const auto& metrics = context.around_the_loop().metrics; !metrics.empty()) {
    refuse("metrics of context.add_metric() ('" + metrics.begin()->first + "') are");
  }
}

void require_logical_batches(const rank::RankSession& session, const Loader& loader, const char* function) {
  if (!session.logical().virtuals || !loader || std::dynamic_pointer_cast<LogicalBatches>(loader)) return;
  throw ConfigError(std::string(function) +
                        "() returned a loader that is not of context.loader(), which is not supported yet with "
                        "reproducibility.virtual_ranks",
                    "return context.loader(data set) of a trial in C++, or leave the key out");
}

}  // namespace dtrain::train
