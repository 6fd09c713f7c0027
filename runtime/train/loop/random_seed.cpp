#include "loop/random_seed.h"

#include <ATen/Context.h>

#include "dtrain/config/experiment.h"

namespace dtrain::train {

void seed_draws(const run::RankSession& session, Draws draws, std::int64_t number) {
  at::manual_seed(random_seed(session.experiment().experiment_seed, session.world().rank, number, draws));
}

void seed_draws_alike(const run::RankSession& session, Draws draws, std::int64_t number) {
  at::manual_seed(random_seed(session.experiment().experiment_seed, 0, number, draws));
}

}  // namespace dtrain::train
