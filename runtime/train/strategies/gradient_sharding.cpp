#include "strategies/gradient_sharding.h"

#include <array>

#include "dtrain/base/available_memory.h"

namespace dtrain::train {

namespace {

constexpr double kEnough = 1.01;               // a step may take this much longer: the memory is worth it
constexpr std::int64_t kWorthwhile = 1 << 20;  // bytes of a rank
constexpr std::int64_t kShareOfAvailable = 2;  // short of memory: the ranks can free over half of the available memory

std::int64_t spare_bytes(const FlatParameters& parameters, const GradientStrategy& strategy,
                         const comm::FusionPlan& plan) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const FlatRange& range : strategy.spare_gradients(b)) {
      bytes += FlatMemory::whole_pages(parameters.groups()[range.group].gradients, range.begin, range.size());
    }
  }
  return bytes;
}

}  // namespace

GradientSharding::GradientSharding(const RunServices& run, FlatParameters& parameters, GradientExchange& exchange,
                                   config::ShardedGradients wanted)
    : run_(run), parameters_(parameters), exchange_(exchange) {
  const bool possible = parameters.memory().on_host() && run.world.size > 1;
  decided_ = wanted != config::ShardedGradients::kAuto || !possible;
  sharded_ = wanted == config::ShardedGradients::kOn && possible;
  if (sharded_) sharded_ = exchange_.free_spare_gradients(true) > 0;
  if (wanted != config::ShardedGradients::kOn || sharded_ || !run.is_first_rank()) return;
  run.log->warn("optimizations.sharded_gradients: true has no effect {}",
                run.world.size == 1              ? "with one rank"
                : !parameters.memory().on_host() ? "on GPUs, where gradients stay whole"
                                                 : "here: the kernel takes none of their memory back (locked memory, "
                                                   "vm.overcommit_memory=2, or less than a page)");
}

bool GradientSharding::end_step(const GradientStrategy& strategy, const comm::FusionPlan& plan, std::int64_t batch,
                                double milliseconds) {
  if (decided_ || !strategy.layout().sharded || strategy.layout().one_copy) return false;
  if (!comparison_) {
    begin(spare_bytes(parameters_, strategy, plan));
    return decided_;
  }
  if (comparison_->end_step(batch, milliseconds)) {
    sharded_ = comparison_->second();
    exchange_.free_spare_gradients(sharded_);
  }
  decided_ = comparison_->done();
  return decided_;
}

// The ranks agree, because hosts may differ in memory, and ranks in the sizes of their parts.
void GradientSharding::begin(std::int64_t spare) {
  const auto available = available_memory();
  const std::int64_t of_host = spare * run_.world.local_size;
  const bool is_short = available && of_host * kShareOfAvailable > static_cast<std::int64_t>(*available);
  std::array<std::uint8_t, 2> any{spare >= kWorthwhile, is_short};
  run_.communicator.all_reduce(any.data(), any.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax}).wait();
  short_of_memory_ = any[1] != 0;
  sharded_ = short_of_memory_;
  decided_ = short_of_memory_ || any[0] == 0;
  if (sharded_) exchange_.free_spare_gradients(true);
  if (!decided_) comparison_.emplace(run_.communicator, kEnough);
}

GradientFacts GradientSharding::facts(const GradientStrategy& strategy, const comm::FusionPlan& plan) const {
  GradientFacts facts;
  facts.decided = decided_;
  facts.sharded = sharded_ && strategy.layout().sharded;
  facts.short_of_memory = short_of_memory_;
  for (const auto& group : parameters_.groups()) facts.bytes += group.gradients.numel() * group.gradient_size;
  facts.kept_bytes = facts.sharded ? facts.bytes - spare_bytes(parameters_, strategy, plan) : facts.bytes;
  if (comparison_ && decided_) {
    facts.whole_ms = comparison_->first_ms();
    facts.sharded_ms = comparison_->second_ms();
  }
  return facts;
}

}  // namespace dtrain::train
