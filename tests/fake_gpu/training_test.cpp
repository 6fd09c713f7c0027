// Models train on the device to the same bits as on the CPU.
#include <ATen/autocast_mode.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "gpus.h"
#include "models.h"

namespace dtrain::test {
namespace {

constexpr int kSteps = 20;

struct Trained {
  std::vector<at::Tensor> tensors;  // parameters, then buffers
  double loss = 0;
};

// Forward, backward and a fused optimizer, the inputs copied in each step.
template <typename Model>
Trained train(at::Device device, const std::shared_ptr<Model>& model, const at::Tensor& inputs,
              const at::Tensor& labels) {
  model->to(device);
  std::vector<at::Tensor> parameters = model->parameters(), first, second, steps;
  for (const at::Tensor& p : parameters) {
    first.push_back(at::zeros_like(p));
    second.push_back(at::zeros_like(p));
    steps.push_back(at::zeros({}, device));
  }
  const auto rate = at::full({}, 1e-2, device);
  at::manual_seed(11);  // for dropout: the device's generator and the CPU's begin alike
  at::Tensor loss;
  for (int s = 0; s < kSteps; ++s) {
    model->zero_grad();
    const auto outputs = model->forward(inputs.to(device));
    loss = at::cross_entropy_loss(outputs.flatten(0, -2), labels.to(device).flatten());
    loss.backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, rate, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
  Trained trained{{}, loss.item<double>()};
  for (const at::Tensor& p : parameters) trained.tensors.push_back(p.detach().cpu());
  for (const at::Tensor& b : model->buffers()) trained.tensors.push_back(b.cpu());
  return trained;
}

void expect_same(const Trained& cpu, const Trained& gpu) {
  EXPECT_EQ(cpu.loss, gpu.loss);
  ASSERT_EQ(cpu.tensors.size(), gpu.tensors.size());
  for (std::size_t i = 0; i < cpu.tensors.size(); ++i) EXPECT_TRUE(at::equal(cpu.tensors[i], gpu.tensors[i])) << i;
}

class Training : public OnGpus {
 protected:
  // The device computes attention step by step; so does the CPU without its fused kernel.
  Training() { at::globalContext().setSDPUseFlash(false); }
  ~Training() override { at::globalContext().setSDPUseFlash(true); }

  template <typename Make>
  static void compare(Make make, const at::Tensor& inputs, const at::Tensor& labels) {
    at::manual_seed(7);
    const Trained cpu = train(at::kCPU, make(), inputs, labels);
    for (const auto device : {kGpu, kOtherGpu}) {
      const c10::DeviceGuard on(device);
      at::manual_seed(7);
      expect_same(cpu, train(device, make(), inputs, labels));
      EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
    }
  }
};

TEST_F(Training, ConvolutionsAndNorms) {
  at::manual_seed(5);
  compare([] { return std::make_shared<ConvNet>(); }, at::rand({16, 1, 14, 14}), at::randint(0, 10, {16}, at::kLong));
}

TEST_F(Training, AttentionAndTiedWeights) {
  at::manual_seed(5);
  compare([] { return std::make_shared<Gpt>(0); }, at::randint(0, 50, {4, 12}, at::kLong),
          at::randint(0, 50, {4, 12}, at::kLong));
}

TEST_F(Training, Dropout) {
  at::manual_seed(5);
  // At 1/2 scaling is exact: the CPU divides the mask, the device multiplies the result.
  compare([] { return std::make_shared<Gpt>(0.5); }, at::randint(0, 50, {4, 12}, at::kLong),
          at::randint(0, 50, {4, 12}, at::kLong));
}

// A TorchScript module where train() expects one of C++.
struct Script {
  Script() {
    script.register_parameter("embedding", at::randn({50, 16}) * 0.1, false);
    script.register_parameter("last", at::randn({50, 16}) * 0.1, false);
    script.define(R"(
      def forward(self, tokens):
          x = torch.embedding(self.embedding, tokens)
          return torch.matmul(torch.relu(x) * 2.0 + torch.sigmoid(x), self.last.t())
)");
    for (at::Tensor p : parameters()) p.requires_grad_(true);
  }
  void to(at::Device device) { script.to(device); }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : script.parameters()) all.push_back(p);
    return all;
  }
  std::vector<at::Tensor> buffers() const { return {}; }
  void zero_grad() {
    for (at::Tensor p : parameters()) p.mutable_grad() = at::Tensor();
  }
  at::Tensor forward(const at::Tensor& tokens) { return script.forward({tokens}).toTensor(); }

  torch::jit::Module script{"script"};
};

TEST_F(Training, TorchScript) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  at::manual_seed(5);
  compare([] { return std::make_shared<Script>(); }, at::randint(0, 50, {4, 12}, at::kLong),
          at::randint(0, 50, {4, 12}, at::kLong));
}

TEST_F(Training, AutocastIsThatOfCuda) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto x = at::ones({4, 4}, kGpu);
  const auto product = x.matmul(x), exponential = at::exp(product);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(exponential.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(product.cpu().to(at::kFloat), at::full({4, 4}, 4.0)));
}

TEST_F(Training, GeneratorsOfDevicesAndCpuAreApart) {
  at::manual_seed(3);
  const auto first = at::rand({4}, kGpu).cpu();
  EXPECT_TRUE(at::equal(first, at::rand({4})));
  const auto second = at::rand({4}, kGpu).cpu();
  EXPECT_FALSE(at::equal(first, second));
  at::manual_seed(3);
  at::native_dropout(at::ones({64}, kGpu), 0.5, true);  // takes no generator
  EXPECT_TRUE(at::equal(first, at::rand({4})));
  auto generator = at::globalContext().defaultGenerator(kGpu);
  const auto state = generator.get_state();
  const auto drawn = at::rand({4}, kGpu);
  generator.set_state(state);
  EXPECT_TRUE(at::equal(drawn, at::rand({4}, kGpu)));
}

}  // namespace
}  // namespace dtrain::test
