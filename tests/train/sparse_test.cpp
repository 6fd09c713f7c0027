// Sparse gradients (Embedding(sparse=True)) among ranks that look up different rows: the weights are those of dense
// gradients, on every rank.
#include <gtest/gtest.h>

#include "exchange/gradient_exchange.h"
#include "exchange/replicated.h"
#include "exchange/sharded.h"
#include "harness/run_ranks.h"
#include "model/flat_optimizer.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

// Every rank's weights after five windows of `batches`. Row 0 is looked up by all ranks, row 1 + rank by that rank
// alone, the last row by none; in every third window rank 1 looks up nothing.
std::vector<at::Tensor> weights_after(bool sparse, bool sharded, int ranks, int batches) {
  torch::manual_seed(8);
  const at::Tensor start = torch::randn({6, 3});
  std::vector<at::Tensor> results(static_cast<std::size_t>(ranks));
  test::run_communicator_ranks(test::TestWorld(ranks), "thread", [&](comm::Communicator& communicator) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(6, 3).sparse(sparse));
    {
      const at::NoGradGuard no_grad;
      model->weight.copy_(start);
    }
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(Sgd{.lr = 0.1, .momentum = 0.9}, nullptr, flat);
    const comm::FusionPlan plan = comm::plan_fusion(items_of(flat), 64);
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    GradientExchange exchange(flat, communicator, communicator, recorder);
    const GradientHooks hooks(flat, exchange);
    const FixedScale scale(1.0 / (batches * ranks));
    std::unique_ptr<GradientStrategy> strategy;
    if (sharded) {
      strategy = std::make_unique<Sharded>(flat, optimizer, communicator, recorder, scale);
    } else {
      strategy = std::make_unique<Replicated>(flat, optimizer, communicator, recorder, scale);
    }
    strategy->set_plan(plan);
    exchange.use(*strategy, plan);
    const int rank = communicator.rank();
    for (int window = 0; window < 5; ++window) {
      for (int batch = 0; batch < batches; ++batch) {
        exchange.begin_batch(batch == batches - 1);
        const bool nothing = rank == 1 && window % 3 == 2;
        const at::Tensor rows =
            nothing ? torch::empty({0}, torch::kLong) : torch::tensor({0, 0, 1 + rank}, torch::kLong);
        exchange.backward((model->forward(rows).pow(2) * (1 + rank + batch)).sum());
      }
      const auto used = exchange.finish();
      strategy->update({used, 1, 0});
      exchange.end_window();
      optimizer.advance_schedule();
    }
    strategy.reset();
    results[static_cast<std::size_t>(rank)] = model->weight.detach().clone();
  });
  return results;
}

TEST(SparseGradients, TrainAsDenseOnesDoOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    for (const int batches : {1, 3}) {
      for (const bool sharded : {false, true}) {
        const auto dense = weights_after(false, sharded, ranks, batches);
        const auto sparse = weights_after(true, sharded, ranks, batches);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto at = static_cast<std::size_t>(rank);
          const std::string what = std::to_string(ranks) + " ranks, rank " + std::to_string(rank) + ", " +
                                   std::to_string(batches) + (sharded ? " batches, sharded" : " batches, replicated");
          EXPECT_TRUE(torch::equal(sparse[at], sparse[0])) << what;
          EXPECT_TRUE(torch::allclose(sparse[at], dense[at], 1e-5, 1e-6)) << what;  // added up in another order
          EXPECT_TRUE(torch::equal(sparse[at][5], dense[at][5])) << what;           // the row that nobody looks up
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::train
