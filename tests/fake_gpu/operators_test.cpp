// Operators whose result is not simply new memory: views, resized results, results in arguments, statistics.
#include <functional>
#include <sstream>

#include "gpus.h"

namespace dtrain::test {
namespace {

class Operators : public OnGpus {
 protected:
  // The same on the CPU and on the device.
  static void compare(const std::function<at::Tensor(at::Device)>& run) {
    at::manual_seed(1);
    const at::Tensor cpu = run(at::kCPU);
    at::manual_seed(1);
    const at::Tensor gpu = run(kGpu);
    EXPECT_TRUE(gpu.is_cuda());
    EXPECT_EQ(gpu.strides(), cpu.strides());
    EXPECT_TRUE(at::equal(cpu, gpu.cpu()));
    EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
  }
};

TEST_F(Operators, ResultsInArguments) {
  compare([](at::Device device) {
    const auto x = at::rand({5, 5}).to(device);
    auto resized = at::empty({0}, device), right = at::empty({5, 5}, device);
    at::mm_out(resized, x, x);
    at::add_out(right, resized, x);
    return right;
  });
}

TEST_F(Operators, Views) {
  compare([](at::Device device) {
    const auto x = at::rand({4, 6}).to(device);
    x.t().narrow(0, 1, 2).unfold(1, 2, 2).add_(1);
    at::view_as_real(at::view_as_complex(x.view({4, 3, 2}))).select(2, 0).zero_();
    return x;
  });
}

TEST_F(Operators, ViewsShareTheirMemory) {
  const auto x = at::zeros({4, 6}, kGpu);
  EXPECT_EQ(x.t().data_ptr(), x.data_ptr());
  EXPECT_TRUE(x.narrow(0, 1, 2).is_alias_of(x));
}

TEST_F(Operators, Storages) {
  compare([](at::Device device) {
    auto x = at::rand({5}).to(device), part = at::empty({0}, device);
    x.resize_({8});
    x.narrow(0, 5, 3).zero_();
    part.set_(x.storage(), 2, {2, 3}, {3, 1});
    part.add_(1);
    return x;
  });
}

TEST_F(Operators, LayoutsStay) {
  compare([](at::Device device) {
    const auto images = at::rand({2, 3, 5, 5}).to(device).contiguous(at::MemoryFormat::ChannelsLast);
    return at::relu(at::conv2d(images, at::rand({4, 3, 3, 3}).to(device)));
  });
}

TEST_F(Operators, Lists) {
  compare([](at::Device device) {
    const std::vector<at::Tensor> tensors{at::rand({5}).to(device), at::rand({7}).to(device)};
    return at::cat({at::stack(at::_foreach_norm(tensors, 2)), std::get<0>(at::topk(tensors[1], 3)), at::cat(tensors)});
  });
}

TEST_F(Operators, RandomNumbersWithoutTensors) {
  compare([](at::Device device) { return at::randperm(20, device).to(at::kFloat) + at::randn({20}, device); });
}

TEST_F(Operators, BatchNormWritesItsStatistics) {
  const auto side = pool_stream();
  const auto x = at::rand({4, 2}, kGpu), mean = at::zeros({2}, kGpu), variance = at::ones({2}, kGpu);
  order(current_stream(), side);
  {
    const c10::StreamGuard on(side);
    at::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false);
  }
  mean.sum();  // two reads would not conflict
  EXPECT_THAT(gpus.take_reports(), testing::ElementsAre(testing::HasSubstr("missing wait: sum")));
  order(side, current_stream());
}

TEST_F(Operators, TensorsAreSavedAndLoaded) {
  const auto x = at::rand({5, 5}, kGpu);
  std::stringstream file;
  torch::save(x, file);
  at::Tensor loaded;
  torch::load(loaded, file);
  EXPECT_TRUE(loaded.is_cuda());
  EXPECT_TRUE(at::equal(x.cpu(), loaded.cpu()));
}

}  // namespace
}  // namespace dtrain::test
