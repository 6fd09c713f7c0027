// CUDA graphs through libtorch's class for them, as training captures them: a whole step with backward.
#include <cmath>
#include <string>
#include <vector>

#include "../harness/elf.h"
#include "device/device_graph.h"
#include "dtrain/base/error.h"
#include "gpus.h"

namespace dtrain::train {
namespace {

using test::gpus;
using testing::HasSubstr;
using testing::IsEmpty;

class DeviceGraphs : public test::OnGpus {
 protected:
  DeviceGraphs() : on_(test::pool_stream()) { at::manual_seed(5); }

  // A step of stochastic gradient descent, with dropout, on tensors that stay where they are.
  struct Step {
    at::Tensor weights = at::randn({8, 4}, at::kFloat).to(test::kGpu).requires_grad_();
    at::Tensor batch = at::randn({16, 8}, at::kFloat).to(test::kGpu);
    at::Tensor loss = at::zeros({}, test::kGpu);
    void operator()() {
      weights.mutable_grad().reset();
      const at::Tensor out = at::dropout(batch.matmul(weights), 0.5, true).pow(2).mean();
      out.backward();  // on libtorch's thread for the device
      const at::NoGradGuard no_gradients;
      weights.sub_(weights.grad(), 0.1);
      loss.copy_(out);
    }
  };

  const c10::StreamGuard on_;
};

TEST_F(DeviceGraphs, AReplayedStepWithBackwardIsTheEagerOne) {
  Step step;
  const at::Tensor first = step.weights.detach().clone();
  at::manual_seed(11);
  std::vector<at::Tensor> eager;
  for (int i = 0; i < 4; ++i) {
    step();
    eager.push_back(step.weights.detach().cpu());
  }
  step.weights.detach().copy_(first);
  test::current_stream().synchronize();
  const auto graph = make_device_graph();
  graph->begin_capture();
  step();
  graph->end_capture();
  EXPECT_TRUE(at::equal(step.weights.detach().cpu(), first.cpu()));
  at::manual_seed(11);
  gpus.take_counts();
  for (const at::Tensor& expected : eager) {
    graph->replay();
    EXPECT_TRUE(at::equal(step.weights.detach().cpu(), expected));
  }
  EXPECT_EQ(gpus.take_counts().graph_launches, 4);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(DeviceGraphs, AWaitInBackwardEndsTheCaptureAndNothingElse) {
  Step step;
  step();
  test::current_stream().synchronize();
  const at::Tensor before = step.weights.detach().cpu();
  {
    const auto graph = make_device_graph();
    graph->begin_capture();
    const at::Tensor out = step.batch.matmul(step.weights).sum();
    out.register_hook([](const at::Tensor& gradient) { return gradient * gradient.item<float>(); });
    EXPECT_THROW(out.backward(), c10::Error);
    EXPECT_THROW(graph->end_capture(), c10::Error);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());  // libtorch's allocator got the memory back, too
  EXPECT_TRUE(at::equal(step.weights.detach().cpu(), before));
  step();
  const auto again = make_device_graph();
  again->begin_capture();
  step();
  again->end_capture();
  again->replay();
  EXPECT_TRUE(std::isfinite(step.loss.item<float>()));
}

TEST_F(DeviceGraphs, ACaptureThatIsNeverEndedEndsWithItsObject) {
  Step step;
  {
    const auto graph = make_device_graph();
    graph->begin_capture();
    step.batch.mul_(2);
  }
  EXPECT_TRUE(std::isfinite(step.batch.sum().item<float>()));  // no capture is under way
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(DeviceGraphs, MisuseIsAnError) {
  const auto graph = make_device_graph();
  EXPECT_THROW(graph->replay(), c10::Error);
  {
    const c10::StreamGuard on_default(test::guard().getDefaultStream(test::kGpu));
    EXPECT_THROW(graph->begin_capture(), c10::Error);
  }
  graph->begin_capture();
  const auto second = make_device_graph();
  EXPECT_THROW(second->begin_capture(), c10::Error);
}

TEST_F(DeviceGraphs, TheModuleLinksNothingOfCuda) {
  const std::string text = dynamic_section(DTRAIN_BINARY_DIR "/lib/libdtrain_cuda_graph.so");
  EXPECT_THAT(text, HasSubstr("NEEDED"));
  EXPECT_THAT(text, testing::Not(testing::ContainsRegex("NEEDED.*(cuda|cudart|nccl)")));
}

}  // namespace
}  // namespace dtrain::train
