// Seeds libtorch's random streams anew before each call of the trial and of its data. So no stream has to be saved, and
// a run that goes on from a checkpoint draws the same numbers as the run without a break.
#pragma once

#include <cstdint>

#include <ATen/Context.h>

#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

// The use of the random numbers, and the unit in which a seed's number counts.
enum class Draws : std::uint64_t {
  kTraining = 0,     // train_batch(), by the batch
  kEpoch = 1,        // start_epoch() of the training data, by the epoch
  kData = 2,         // next() of the training data, by the batch; training_loader(), equal on all ranks: 0
  kBeforeBatch = 3,  // before_batch(), by the batch
  kValidation = 4,   // a validation, by the batch that it follows; validation_loader(), equal on all ranks: -1
  kCallbacks = 5,    // a call of a callback, by the batch that the callback gets
  kPrediction = 6,   // predict_batch(), by the batch of all ranks
};

// Returns a seed from the experiment's seed, the rank, the number and the purpose. The mixing is the finalizer of
// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
inline std::uint64_t random_seed(std::uint64_t seed, int rank, std::int64_t number, Draws draws) {
  std::uint64_t x = seed ^ static_cast<std::uint64_t>(draws) << 61;
  for (const std::uint64_t part : {static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(number)}) {
    x += 0x9e3779b97f4a7c15u * (part + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

// Seeds libtorch's default generators of the CPU and of the GPUs. All threads share them. Training thread.
inline void seed_draws(const rank::RankSession& session, Draws draws, std::int64_t number) {
  at::manual_seed(random_seed(session.experiment().experiment_seed, session.logical().current, number, draws));
}

// The same with seeds that are equal on all ranks.
inline void seed_draws_alike(const rank::RankSession& session, Draws draws, std::int64_t number) {
  at::manual_seed(random_seed(session.experiment().experiment_seed, 0, number, draws));
}

}  // namespace dtrain::train
