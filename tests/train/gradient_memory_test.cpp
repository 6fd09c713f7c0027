// Gradients written in place: they must be there, be right, and stay right when a model does something else for once.
#include <thread>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "exchange/gradient_place.h"
#include "harness/run_ranks.h"
#include "model/flat_parameters.h"

namespace dtrain::train {
namespace {

class GradientMemoryTest : public testing::Test {
 protected:
  GradientMemoryTest() {
    torch::manual_seed(3);
    model = torch::nn::Sequential(torch::nn::Linear(24, 40), torch::nn::ReLU(), torch::nn::Linear(40, 8));
    flat = std::make_unique<FlatParameters>(*model, *communicator);
    memory = std::make_unique<GradientMemory>(*flat);
  }

  // One backward as the strategy runs it; how many gradients were written in place. Checks all against plain autograd.
  int backward(std::int64_t samples) {
    const auto x = torch::randn({samples, 24});
    std::vector<at::Tensor> leaves;
    for (auto& p : flat->parameters()) leaves.push_back(p.tensor);
    const auto expected = torch::autograd::grad({model->forward(x).pow(2).sum()}, leaves);
    for (auto& p : flat->parameters()) p.tensor.mutable_grad() = at::Tensor();
    {
      const GradientMemory::Lending lending(*memory);
      model->forward(x).pow(2).sum().backward();
      int in_place = 0;
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        in_place += memory->settle(i, leaves[i].mutable_grad().data_ptr()) ? 1 : 0;
        EXPECT_TRUE(torch::equal(leaves[i].mutable_grad(), expected[i])) << flat->parameters()[i].name;
      }
      settled = in_place;
    }
    for (auto& p : flat->parameters()) p.tensor.mutable_grad() = at::Tensor();
    return settled;
  }

  std::unique_ptr<comm::Communicator> communicator =
      std::move(test::make_thread_communicators(1, test::TestWorld(1).communicator_options()).front());
  torch::nn::Sequential model;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<GradientMemory> memory;
  int settled = 0;
};

TEST_F(GradientMemoryTest, WritesInPlaceOnceItKnowsTheOrder) {
  EXPECT_EQ(backward(16), 0);
  EXPECT_EQ(backward(16), 4);
  EXPECT_EQ(backward(16), 4);
}

TEST_F(GradientMemoryTest, ABatchOfAnotherSizeIsRightToo) {
  backward(16);
  backward(16);
  backward(5);  // other allocations: nothing, or less, is lent
  backward(16);
  EXPECT_EQ(backward(16), 4);
}

TEST_F(GradientMemoryTest, LendsNothingThatIsStillHeld) {
  backward(16);
  backward(16);
  at::Tensor kept;
  const auto x = torch::randn({16, 24});
  {
    const GradientMemory::Lending lending(*memory);
    model->forward(x).pow(2).sum().backward();
    for (std::size_t i = 0; i < 4; ++i) memory->settle(i, flat->parameters()[i].tensor.mutable_grad().data_ptr());
    kept = flat->parameters()[1].tensor.mutable_grad();  // the storage itself, not the flat view
  }
  ASSERT_EQ(kept.data_ptr(), flat->parameters()[1].gradient.data_ptr());
  const auto copy = kept.clone();
  EXPECT_EQ(backward(16), 3);
  EXPECT_FALSE(memory->may_write(1));
  EXPECT_TRUE(torch::equal(kept, copy));
  kept = at::Tensor();
  EXPECT_TRUE(memory->may_write(1));
}

TEST_F(GradientMemoryTest, OtherThreadsAndOtherTimesGetOrdinaryMemory) {
  backward(16);
  backward(16);
  const auto& weight = flat->parameters()[1];
  const auto outside = torch::empty_like(weight.tensor);
  EXPECT_NE(outside.data_ptr(), weight.gradient.data_ptr());
  const GradientMemory::Lending lending(*memory);
  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = torch::empty({40, 24}).data_ptr(); }).join();
  for (const auto& p : flat->parameters()) EXPECT_NE(elsewhere, p.gradient.data_ptr());
}

}  // namespace
}  // namespace dtrain::train
