#include <algorithm>
#include <atomic>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "kernels/first_maximum.h"
#include "parallel/parallel.h"
#include "worker/loss.h"
#include "worker/script_file.h"

namespace dtrain::worker {
namespace {

constexpr std::int64_t kAccuracyGrain = 1 << 16;  // scores that are worth a thread

void check_classes(const at::Tensor& target, std::int64_t classes) {
  const auto [least, most] = at::aminmax(target);
  for (const std::int64_t value : {least.item<std::int64_t>(), most.item<std::int64_t>()}) {
    if (value >= 0 && value < classes) continue;
    throw DataError("the target has class " + std::to_string(value) + ", the model's output " +
                        std::to_string(classes) + " classes (0 to " + std::to_string(classes - 1) + ")",
                    "give the model one output for each class, or correct the targets");
  }
}

// The share of samples whose first largest score is that of their target; float64, of one element.
at::Tensor accuracy_of(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor scores = output.detach().contiguous();
  const at::ScalarType type = scores.scalar_type();
  const bool has_kernel = scores.is_cpu() && (type == at::kFloat || type == at::kBFloat16);
  if (!has_kernel) return scores.argmax(1).eq(target).to(at::kDouble).mean();
  const at::Tensor targets = target.contiguous();
  const std::int64_t classes = scores.size(1);
  std::atomic<std::int64_t> right{0};
  train::parallel_for(scores.size(0), std::max<std::int64_t>(1, kAccuracyGrain / classes), [&](auto begin, auto end) {
    const auto count = [&]<class Score>(const Score* first) {
      right +=
          train::kernels::count_first_maxima(first + begin * classes, targets.const_data_ptr<std::int64_t>() + begin,
                                             static_cast<std::size_t>(end - begin), static_cast<std::size_t>(classes));
    };
    if (type == at::kFloat) {
      count(scores.const_data_ptr<float>());
    } else {
      count(reinterpret_cast<const train::kernels::Bfloat16*>(scores.const_data_ptr<at::BFloat16>()));
    }
  });
  return at::scalar_tensor(static_cast<double>(right) / static_cast<double>(scores.size(0)), at::kDouble);
}

LossValues cross_entropy(const LossInput& input) {
  at::Tensor output = input.output;
  at::Tensor target = input.target;
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw Error("loss: cross_entropy needs whole numbers as targets, these are " + describe(target),
                "give the class of each sample, or use loss: mse");
  }
  target = target.to(at::kLong);
  const bool sequences = input.sequences;
  const bool fits = sequences ? output.dim() == 3 && output.sizes().slice(0, 2) == target.sizes()
                              : output.dim() == 2 && target.dim() == 1 && output.size(0) == target.size(0);
  if (!fits) {
    refuse_shapes(
        {output, target},
        sequences ? "cross_entropy over tokens needs scores [batch, positions, classes] for targets [batch, positions]"
                  : "cross_entropy needs scores [batch, classes] for targets [batch]");
  }
  if (sequences) {
    output = output.flatten(0, 1);
    target = target.flatten();
  }
  check_classes(input.host_target.defined() ? input.host_target : target, output.size(1));
  return {at::cross_entropy_loss(output, target), accuracy_of(output, target)};
}

}  // namespace
}  // namespace dtrain::worker

namespace dtrain::config {

worker::LossValues CrossEntropy::evaluate(const worker::LossInput& input) const {
  return worker::cross_entropy(input);
}

void CrossEntropy::check_target(const worker::LossInput& input) const {
  worker::check_classes(input.host_target, input.output.size(input.sequences ? 2 : 1));
}

}  // namespace dtrain::config
