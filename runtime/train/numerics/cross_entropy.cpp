#include "numerics/cross_entropy.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "device/device_kernels.h"
#include "numerics/kernels.h"
#include "numerics/own_operators.h"
#include "numerics/parallel.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kLeastScores = 1 << 15;  // scores for which a thread pays off

using Optional = std::optional<at::Tensor>;

constexpr const char* kLosses = "dtrain::cross_entropy";
constexpr const char* kGradient = "dtrain::cross_entropy_backward";

at::Tensor libtorchs(const at::Tensor& scores, const at::Tensor& target, const Optional& weight, std::int64_t reduction,
                     std::int64_t ignored, double smoothing) {
  return at::compositeimplicitautograd::cross_entropy_loss(scores, target, weight, reduction, ignored, smoothing);
}

// Throws libtorch's error for a target that is out of bounds.
void check_targets(const at::Tensor& target, std::int64_t classes, std::int64_t ignored) {
  const std::int64_t* const values = target.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < target.numel(); ++i) {
    TORCH_CHECK_INDEX(values[i] == ignored || (values[i] >= 0 && values[i] < classes), "Target ", values[i],
                      " is out of bounds.");
  }
}

kernels::CrossEntropyRows rows_of(const at::Tensor& target, std::int64_t classes, std::int64_t ignored,
                                  double smoothing, std::int64_t begin, std::int64_t end) {
  return {static_cast<std::size_t>(end - begin), static_cast<std::size_t>(classes),
          target.const_data_ptr<std::int64_t>() + begin, ignored, static_cast<float>(smoothing)};
}

// Calls work(begin, end, pointer to the first row's scores) for ranges of rows, on the rank's threads.
template <class Work>
void for_rows(const at::Tensor& scores, const Work& work) {
  const std::int64_t classes = scores.size(1);
  parallel_for(scores.size(0), std::max<std::int64_t>(1, kLeastScores / classes),
               [&](std::int64_t begin, std::int64_t end) {
                 if (scores.scalar_type() == at::kFloat) {
                   work(begin, end, scores.const_data_ptr<float>() + begin * classes);
                 } else {
                   work(begin, end, static_cast<const kernels::Bfloat16*>(scores.const_data_ptr()) + begin * classes);
                 }
               });
}

std::int64_t counted(const at::Tensor& target, std::int64_t ignored) {
  const std::int64_t* const values = target.const_data_ptr<std::int64_t>();
  return std::count_if(values, values + target.numel(), [&](std::int64_t value) { return value != ignored; });
}

// The same where the host must not wait for the targets.
at::Tensor counted_on_device(const at::Tensor& target, std::int64_t ignored) {
  return target.ne(ignored).sum();
}

// Returns the rows' losses [rows] and the values for their gradients [rows, 2]. `scores` [rows, classes] and `target`
// [rows] are contiguous.
std::tuple<at::Tensor, at::Tensor> losses_of(const at::Tensor& scores, const at::Tensor& target, std::int64_t ignored,
                                             double smoothing) {
  const std::int64_t rows = scores.size(0), classes = scores.size(1);
  check_targets(target, classes, ignored);
  at::Tensor losses = at::empty({rows}, scores.options().dtype(at::kFloat));
  at::Tensor sums = at::empty({rows, 2}, losses.options());
  for_rows(scores, [&](std::int64_t begin, std::int64_t end, const auto* first) {
    kernels::cross_entropy(rows_of(target, classes, ignored, smoothing, begin, end), first,
                           losses.mutable_data_ptr<float>() + begin,
                           reinterpret_cast<kernels::RowSum*>(sums.mutable_data_ptr<float>()) + begin);
  });
  return {losses, sums};
}

void write_gradient(const at::Tensor& gradient, const at::Tensor& of_losses, const at::Tensor& scores,
                    const at::Tensor& target, const at::Tensor& sums, std::int64_t ignored, double smoothing) {
  const std::int64_t classes = scores.size(1);
  for_rows(scores, [&]<class Score>(std::int64_t begin, std::int64_t end, const Score* first) {
    kernels::cross_entropy_gradient(rows_of(target, classes, ignored, smoothing, begin, end), first,
                                    reinterpret_cast<const kernels::RowSum*>(sums.const_data_ptr<float>()) + begin,
                                    of_losses.const_data_ptr<float>() + begin,
                                    static_cast<Score*>(gradient.mutable_data_ptr()) + begin * classes);
  });
}

// `of_losses` [rows], float32.
at::Tensor gradient_of(const at::Tensor& of_losses, const at::Tensor& scores, const at::Tensor& target,
                       const at::Tensor& sums, std::int64_t ignored, double smoothing) {
  at::Tensor gradient = at::empty_like(scores, at::MemoryFormat::Contiguous);
  write_gradient(gradient, of_losses, scores, target, sums, ignored, smoothing);
  return gradient;
}

class OnePassCrossEntropy : public torch::autograd::Function<OnePassCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& target, std::int64_t reduction, std::int64_t ignored, double smoothing) {
    const auto [losses, sums] = call_operator<decltype(losses_of)>(kLosses, scores, target, ignored, smoothing);
    context->save_for_backward({scores, target, sums});
    context->saved_data["reduction"] = reduction;
    context->saved_data["ignored"] = ignored;
    context->saved_data["smoothing"] = smoothing;
    if (reduction == at::Reduction::None) return losses;
    if (losses.is_cuda()) {
      const at::Tensor total = losses.sum();
      return reduction == at::Reduction::Mean ? total.div(counted_on_device(target, ignored)) : total;
    }
    double total = 0;  // in the rows' order, so independent of the threads
    for (std::int64_t r = 0; r < losses.numel(); ++r) total += losses.const_data_ptr<float>()[r];
    if (reduction == at::Reduction::Mean) total /= static_cast<double>(counted(target, ignored));
    return at::scalar_tensor(total, losses.options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& of_loss) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &scores = saved[0], &target = saved[1], &sums = saved[2];
    const std::int64_t reduction = context->saved_data["reduction"].toInt();
    const std::int64_t ignored = context->saved_data["ignored"].toInt();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const bool create_graph = at::GradMode::is_enabled();
    if (create_graph || !is_plain(of_loss[0])) {  // uses operators that can be differentiated or traced
      const at::AutoGradMode differentiated(true);
      const at::Tensor loss = libtorchs(scores.to(at::kFloat), target, {}, reduction, ignored, smoothing);
      return {torch::autograd::grad({loss}, {scores}, of_loss, /*retain_graph=*/true, create_graph)[0], {}, {}, {}, {}};
    }
    at::Tensor of_rows = of_loss[0].to(at::kFloat);
    if (reduction == at::Reduction::Mean) {
      of_rows = target.is_cuda() ? of_rows.div(counted_on_device(target, ignored))
                                 : of_rows / static_cast<double>(counted(target, ignored));
    }
    of_rows = of_rows.expand({scores.size(0)}).contiguous();
    return {call_operator<decltype(gradient_of)>(kGradient, of_rows, scores, target, sums, ignored, smoothing),
            {},
            {},
            {},
            {}};
  }
};

// Takes bfloat16 only under autocast, where libtorch's loss is also float32.
bool is_known(const at::Tensor& scores, const at::Tensor& target, const Optional& weight) {
  const bool narrow =
      scores.scalar_type() == at::kBFloat16 && at::autocast::is_autocast_enabled(scores.device().type());
  return is_plain(scores) && is_plain(target) && scores.dim() == 2 && scores.size(1) > 0 &&
         (scores.scalar_type() == at::kFloat || narrow) && scores.layout() == at::kStrided &&
         has_cross_entropy_kernel(scores.device(), scores.scalar_type()) && target.device() == scores.device() &&
         target.scalar_type() == at::kLong && target.dim() == 1 && target.size(0) == scores.size(0) &&
         !(weight && weight->defined());
}

at::Tensor cross_entropy_loss(const at::Tensor& scores, const at::Tensor& target, const Optional& weight,
                              std::int64_t reduction, c10::SymInt ignored_class, double smoothing) {
  const std::int64_t ignored = ignored_class.guard_int(__FILE__, __LINE__);
  if (!is_known(scores, target, weight) || smoothing < 0 || smoothing > 1) {
    return libtorchs(scores, target, weight, reduction, ignored, smoothing);
  }
  return OnePassCrossEntropy::apply(scores.contiguous(), target.contiguous(), reduction, ignored, smoothing);
}

}  // namespace

bool has_cross_entropy_kernel(at::Device device, at::ScalarType type) {
  return (type == at::kFloat || type == at::kBFloat16) &&
         (device.is_cpu() || (device.is_cuda() && why_no_device_kernels().empty()));
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_of(const at::Tensor& scores, const at::Tensor& target,
                                                    std::int64_t ignored, double smoothing) {
  return scores.is_cpu() ? losses_of(scores, target, ignored, smoothing)
                         : cross_entropy_on_device(scores, target, ignored, smoothing);
}

void write_cross_entropy_gradient(const at::Tensor& gradient, const at::Tensor& of_losses, const at::Tensor& scores,
                                  const at::Tensor& target, const at::Tensor& sums, std::int64_t ignored,
                                  double smoothing) {
  if (scores.is_cpu()) return write_gradient(gradient, of_losses, scores, target, sums, ignored, smoothing);
  write_cross_entropy_gradient_on_device(gradient, of_losses, scores, target, sums, ignored, smoothing);
}

bool is_summed_cross_entropy(const torch::autograd::Node* node) {
  const auto* const ours = dynamic_cast<const torch::autograd::CppNode<OnePassCrossEntropy>*>(node);
  return ours && ours->ctx_.saved_data.at("reduction").toInt() == at::Reduction::Sum;
}

void add_cross_entropy(torch::Library& own, torch::Library& aten, torch::Library& aten_on_gpus) {
  own.def("cross_entropy(Tensor scores, Tensor target, int ignored, float smoothing) -> (Tensor, Tensor)",
          torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(losses_of)));
  own.def(
      "cross_entropy_backward(Tensor of_losses, Tensor scores, Tensor target, Tensor sums, int ignored, float "
      "smoothing) "
      "-> Tensor",
      torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(gradient_of)));
  own.impl("cross_entropy", torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(cross_entropy_on_device)));
  own.impl("cross_entropy_backward",
           torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(cross_entropy_gradient_on_device)));
  aten.impl("cross_entropy_loss", TORCH_FN(cross_entropy_loss));
  aten_on_gpus.impl("cross_entropy_loss", TORCH_FN(cross_entropy_loss));
}

}  // namespace dtrain::train
