// Copies that are taken beside updates hold the state between two updates, to the bit, and change nothing.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/update_copy.h"
#include "small_run.h"

namespace dtrain::train {
namespace {

struct Wide : torch::nn::Module {
  Wide() {
    torch::manual_seed(4);
    for (const std::int64_t size : {1, 70'000, 15, 16, 131'072, 3, 200'001}) {
      register_parameter("p" + std::to_string(size), torch::randn({size}));
    }
  }
};

// All values and states, as bytes, in the order of groups.
std::vector<std::vector<std::byte>> bytes_of(const FlatParameters& parameters, FlatOptimizer& optimizer) {
  std::vector<std::vector<std::byte>> all;
  const auto add = [&](const at::Tensor& tensor) {
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    all.emplace_back(data, data + tensor.nbytes());
  };
  for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
    add(parameters.groups()[g].values);
    for (const at::Tensor& state : optimizer.state(g)) add(state);
  }
  return all;
}

struct UpdateRun {
  UpdateRun(SmallRun& run, const Optimizer& kind, bool whole)
      : parameters(model, run.services.communicator), optimizer(kind, {}, parameters), whole(whole) {}
  Wide model;
  FlatParameters parameters;
  FlatOptimizer optimizer;
  bool whole;
  std::size_t parts = 0;  // that were updated by norms
};

// A step of random ranges, or of all at once; some parameters are not used.
void step(UpdateRun& setup, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  torch::manual_seed(static_cast<std::int64_t>(seed));
  std::vector<std::uint8_t> used(setup.parameters.parameters().size());
  for (auto& one : used) one = random() % 4 != 0;
  for (auto& group : setup.parameters.groups()) group.gradients.normal_();
  setup.optimizer.begin_step(used);
  const std::int64_t end = setup.parameters.groups()[0].values.numel();
  for (std::int64_t begin = 0; begin < end;) {
    const std::int64_t length = setup.whole ? end : 16 * (1 + static_cast<std::int64_t>(random() % 9000));
    const std::int64_t next = std::min<std::int64_t>(end, begin + length);
    setup.optimizer.update({0, begin, next});
    begin = next;
  }
  setup.parts += setup.optimizer.open_parts().size();
  setup.optimizer.complete_parts(
      std::vector<WholeNorms>(setup.optimizer.open_parts().size(), WholeNorms{.values = 2, .direction = 1}));
  setup.optimizer.end_step(used);
  setup.optimizer.advance_schedule();
}

struct Way {
  std::string name;
  bool in_two;
  Optimizer optimizer;
  bool whole = false;  // parameters are updated whole
};

class Copies : public testing::TestWithParam<Way> {};

TEST_P(Copies, HoldWhatIsThereBetweenTwoUpdates) {
  const bool in_two = GetParam().in_two;
  run_small(1, [&](SmallRun& run) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(seed);
      UpdateRun copied(run, GetParam().optimizer, GetParam().whole), plain(run, GetParam().optimizer, GetParam().whole);
      step(copied, seed * 10);
      step(plain, seed * 10);
      std::vector<std::vector<std::byte>> target = bytes_of(copied.parameters, copied.optimizer);
      for (auto& part : target) std::fill(part.begin(), part.end(), std::byte{0xee});
      const auto copy = std::make_shared<UpdateCopy>(in_two);
      const auto& group = copied.parameters.groups()[0];
      for (const auto& parameter : copied.parameters.parameters()) {
        std::vector<UpdateCopy::Piece> pieces;
        std::vector<at::Tensor> tensors{group.values};
        for (const at::Tensor& state : copied.optimizer.state(0)) tensors.push_back(state);
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          pieces.push_back({FlatMemory::address(tensors[t], parameter.offset),
                            target[t].data() + parameter.offset * group.element_size});
        }
        copy->add({0, parameter.offset, parameter.offset + parameter.padded}, parameter.tensor.numel(),
                  static_cast<std::size_t>(group.element_size), pieces);
      }
      copy->divide();
      copied.optimizer.copy_at_next_steps(copy);
      if (in_two) {
        step(copied, seed * 10 + 1);
        step(plain, seed * 10 + 1);
        EXPECT_FALSE(copy->finished());
      }
      const auto expected = bytes_of(plain.parameters, plain.optimizer);
      EXPECT_TRUE(bytes_of(copied.parameters, copied.optimizer) == expected) << "the copy has changed the update";
      if (seed == 6) copy->finish();  // no second update comes
      step(copied, seed * 10 + 2);
      step(plain, seed * 10 + 2);
      EXPECT_TRUE(copy->finished());
      EXPECT_EQ(copied.parts > 0, std::holds_alternative<Lamb>(GetParam().optimizer) && !GetParam().whole);
      EXPECT_TRUE(bytes_of(copied.parameters, copied.optimizer) == bytes_of(plain.parameters, plain.optimizer));
      for (std::size_t t = 0; t < target.size(); ++t) {
        for (const auto& parameter : copied.parameters.parameters()) {
          const auto at = static_cast<std::size_t>(parameter.offset * group.element_size);
          EXPECT_EQ(std::memcmp(target[t].data() + at, expected[t].data() + at, parameter.tensor.nbytes()), 0)
              << parameter.name << " of tensor " << t;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Update, Copies,
                         testing::Values(Way{"InOne", false, AdamW{.lr = 0.01}}, Way{"InTwo", true, AdamW{.lr = 0.01}},
                                         Way{"WholeInOne", false, Lamb{.lr = 0.01}, true},
                                         Way{"WholeInTwo", true, Lamb{.lr = 0.01}, true},
                                         Way{"PartsInOne", false, Lamb{.lr = 0.01}},
                                         Way{"PartsInTwo", true, Lamb{.lr = 0.01}}),
                         [](const auto& info) { return info.param.name; });

TEST(StreamCopy, CopiesAnyLengthToAnyPlace) {
  std::vector<std::byte> from(1000), to(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t begin = 0; begin < 70; begin += 3) {
    for (const std::size_t length : {0u, 1u, 63u, 64u, 65u, 127u, 500u}) {
      std::fill(to.begin(), to.end(), std::byte{0});
      stream_copy(to.data() + begin, from.data() + 11, length);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= begin && i < begin + length;
        ASSERT_EQ(to[i], inside ? from[i - begin + 11] : std::byte{0}) << begin << " " << length << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::train
