// Method: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training" (arXiv:2410.10989), section 3.2: chunks
// of rows, whose gradients forward computes. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models"
// (arXiv:2411.09009) describes what the scores cost otherwise.
#include "numerics/linear_cross_entropy.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>

#include "dtrain/base/error.h"
#include "numerics/cross_entropy.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr std::int64_t kAlignedScores = 64;  // GPUs multiply faster where rows begin at multiples of this

// The arguments, with one row for each target.
struct Settings {
  bool is_sum = false;
  std::int64_t ignored = -100;
  double smoothing = 0;
  std::int64_t chunk_bytes = 0;
  at::ScalarType product = at::kFloat;  // type of the products
  at::ScalarType loss = at::kFloat;     // type of the result
  // Which gradients are needed.
  bool of_input = false, of_weight = false, of_bias = false;
  SeeScores see{};

  bool has_gradients() const { return of_input || of_weight || of_bias; }
  at::ScalarType sums() const { return product == at::kDouble ? at::kDouble : at::kFloat; }
};

// Computes loss and gradients chunk by chunk. Gradients are those of the sum of all losses.
class Chunks {
 public:
  Chunks(const Settings& settings, const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
         const at::Tensor& target)
      : settings_(settings),
        input_(input.to(settings.product)),
        weight_(weight.to(settings.product)),
        bias_(bias ? bias->to(settings.product) : at::Tensor()),
        target_(target.contiguous()),
        has_kernel_(has_cross_entropy_kernel(input.device(), settings.product)) {
    // Columns of minus infinity have no part in the loss, unless the target is spread over all columns.
    width_ = classes();
    if (has_kernel_ && input.is_cuda() && settings.smoothing == 0) {
      width_ = (width_ + kAlignedScores - 1) / kAlignedScores * kAlignedScores;
    }
    const at::TensorOptions sums = input_.options().dtype(settings.sums());
    losses = at::empty({rows()}, sums);
    if (settings.of_input) of_input = at::empty_like(input_, at::MemoryFormat::Contiguous);
    if (settings.of_weight) of_weight = at::zeros({classes(), weight.size(1)}, sums);
    if (settings.of_bias) of_bias = at::zeros({classes()}, sums);
  }

  void compute() {
    const std::int64_t chunk = rows_of_chunk();
    scores_ = at::empty({std::min(chunk, rows()), width_}, input_.options());
    for (std::int64_t begin = 0; begin < rows(); begin += chunk) {
      compute(begin, std::min(chunk, rows() - begin));
    }
  }

  at::Tensor losses;                        // [rows]
  at::Tensor of_input, of_weight, of_bias;  // undefined where not needed

 private:
  std::int64_t rows() const { return target_.size(0); }
  std::int64_t classes() const { return weight_.size(0); }

  // libtorch's operators keep the scores, their logarithms in the type of sums, and one temporary of these.
  std::int64_t rows_of_chunk() const {
    const auto in_sums = static_cast<std::int64_t>(c10::elementSize(settings_.sums()));
    const auto in_products = static_cast<std::int64_t>(c10::elementSize(settings_.product));
    const std::int64_t row = width_ * (has_kernel_ ? in_products : in_products + 2 * in_sums);
    const std::int64_t most = std::max<std::int64_t>(1, settings_.chunk_bytes / std::max<std::int64_t>(1, row));
    const std::int64_t chunks = (rows() + most - 1) / most;
    return chunks == 0 ? 1 : (rows() + chunks - 1) / chunks;  // chunks of about equal size
  }

  void compute(std::int64_t begin, std::int64_t count) {
    const at::Tensor input = input_.narrow(0, begin, count), target = target_.narrow(0, begin, count);
    const at::Tensor padded = scores_.narrow(0, 0, count);
    at::Tensor scores = padded.narrow(1, 0, classes());
    if (bias_.defined()) {
      at::addmm_out(scores, bias_, input, weight_.t());
    } else {
      at::mm_out(scores, input, weight_.t());
    }
    if (width_ > classes()) padded.narrow(1, classes(), width_ - classes()).fill_(-INFINITY);
    if (settings_.see) settings_.see(scores, target);
    const at::Tensor of_losses = losses.narrow(0, begin, count);
    if (has_kernel_) {
      replace_by_kernel(padded, target, of_losses);
    } else {
      replace(scores, target, of_losses);
    }
    if (settings_.has_gradients()) add_gradients(scores, input, begin, count);
  }

  // Both write the losses, and the gradient in the place of the scores if there is one.
  void replace_by_kernel(const at::Tensor& scores, const at::Tensor& target, const at::Tensor& to) const {
    const auto [losses, sums] = cross_entropy_of(scores, target, settings_.ignored, settings_.smoothing);
    to.copy_(losses);
    if (!settings_.has_gradients()) return;
    write_cross_entropy_gradient(scores, at::ones_like(losses), scores, target, sums, settings_.ignored,
                                 settings_.smoothing);
  }

  void replace(const at::Tensor& scores, const at::Tensor& target, const at::Tensor& to) const {
    at::Tensor logarithms = at::log_softmax(scores, 1, settings_.sums());
    const at::Tensor ignored = target.eq(settings_.ignored);
    const at::Tensor chosen = target.masked_fill(ignored, 0).unsqueeze(1);
    const double smoothing = settings_.smoothing;
    at::Tensor loss = logarithms.gather(1, chosen).squeeze(1).mul_(smoothing - 1);
    if (smoothing > 0) loss.sub_(logarithms.mean(1), smoothing);
    to.copy_(loss.masked_fill_(ignored, 0));
    if (!settings_.has_gradients()) return;
    logarithms.exp_().sub_(smoothing / static_cast<double>(classes()));
    logarithms.scatter_(1, chosen, logarithms.gather(1, chosen).sub_(1 - smoothing));
    scores.copy_(logarithms.masked_fill_(ignored.unsqueeze(1), 0));
  }

  void add_gradients(const at::Tensor& of_scores, const at::Tensor& input, std::int64_t begin, std::int64_t count) {
    if (of_input.defined()) {
      at::Tensor part = of_input.narrow(0, begin, count);
      at::mm_out(part, of_scores, weight_);
    }
    if (of_bias.defined()) of_bias.add_(of_scores.sum(0, /*keepdim=*/false, settings_.sums()));
    if (!of_weight.defined()) return;
    if (settings_.product == settings_.sums()) {
      at::addmm_out(of_weight, of_weight, of_scores.t(), input);
    } else {
      if (!part_of_weight_.defined()) part_of_weight_ = at::empty(of_weight.sizes(), input.options());
      at::mm_out(part_of_weight_, of_scores.t(), input);
      of_weight.add_(part_of_weight_);
    }
  }

  const Settings settings_;
  const at::Tensor input_, weight_, bias_, target_;
  const bool has_kernel_;
  std::int64_t width_ = 0;     // columns of the scores: the classes, and what aligns rows
  at::Tensor scores_;          // of a chunk
  at::Tensor part_of_weight_;  // the gradient of the weight by a chunk, in a narrower type than the sum
};

// The sum, on CPUs in the rows' order and in float64, so independent of the threads.
at::Tensor sum_of(const at::Tensor& losses) {
  if (!losses.is_cpu()) return losses.sum();
  const at::Tensor wide = losses.to(at::kDouble);
  double sum = 0;
  for (std::int64_t row = 0; row < wide.numel(); ++row) sum += wide.const_data_ptr<double>()[row];
  return at::scalar_tensor(sum, losses.options());
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const Optional& bias, const at::Tensor& target,
                            const Settings& settings) {
    Chunks chunks(settings, input, weight, bias, target);
    chunks.compute();
    at::Tensor loss = sum_of(chunks.losses);
    at::Tensor counted;
    if (!settings.is_sum) {
      counted = target.ne(settings.ignored).sum().to(settings.sums());
      loss = loss.div(counted);
    }
    if (chunks.of_weight.defined()) chunks.of_weight = chunks.of_weight.to(weight.scalar_type());
    if (chunks.of_bias.defined()) chunks.of_bias = chunks.of_bias.to(bias->scalar_type());
    context->save_for_backward({chunks.of_input, chunks.of_weight, chunks.of_bias, counted});
    context->saved_data["input_type"] = static_cast<std::int64_t>(input.scalar_type());
    context->saved_data["is_sum"] = settings.is_sum;
    return loss.to(settings.loss);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& of_loss) {
    if (at::GradMode::is_enabled()) {
      throw Error("linear_cross_entropy: backward with create_graph=True, and the gradient has no gradient",
                  "compute the loss by linear and cross_entropy of torch where gradients of gradients are needed");
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor& counted = saved[3];
    at::Tensor factor = of_loss[0];
    if (counted.defined()) factor = factor.to(counted.scalar_type()).div(counted.clamp_min(1));
    const bool is_last = !torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](const at::Tensor& gradient) {
      if (!gradient.defined()) return gradient;
      return is_last ? gradient.mul_(factor) : gradient.mul(factor);
    };
    at::Tensor of_input = scaled(saved[0]);
    if (of_input.defined()) {
      of_input = of_input.to(static_cast<at::ScalarType>(context->saved_data["input_type"].toInt()));
    }
    return {of_input, scaled(saved[1]), scaled(saved[2]), {}, {}};
  }
};

[[noreturn]] void refuse(const std::string& what, const char* remedy) {
  throw Error("linear_cross_entropy: " + what, remedy);
}

std::string shape_of(const at::Tensor& tensor) {
  return c10::str(tensor.sizes());
}

void check_shapes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                  const LinearCrossEntropyOptions& options) {
  const at::Tensor& bias = options.linear_bias;
  if (weight.dim() != 2 || input.dim() < 1 || input.size(-1) != weight.size(1)) {
    refuse("the input has the shape " + shape_of(input) + ", and the weight " + shape_of(weight),
           "give an input [..., features] and a weight [classes, features]");
  }
  if (target.sizes() != input.sizes().slice(0, input.dim() - 1)) {
    refuse("the input has the shape " + shape_of(input) + ", and the target " + shape_of(target),
           "give a class for each row of the input");
  }
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0))) {
    refuse("the weight has the shape " + shape_of(weight) + ", and the bias " + shape_of(bias),
           "give a bias [classes]");
  }
  if (target.scalar_type() != at::kLong) {
    refuse("the target is of type " + std::string(c10::toString(target.scalar_type())),
           "give classes, int64; for probabilities call linear and cross_entropy of torch");
  }
  if (options.reduction != at::Reduction::Mean && options.reduction != at::Reduction::Sum) {
    refuse("the reduction is neither mean nor sum", "for the losses of rows call linear and cross_entropy of torch");
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    refuse("label_smoothing is " + std::to_string(options.label_smoothing), "give a number from 0 to 1");
  }
  if (options.chunk_bytes < 1) {
    refuse("chunk_bytes is " + std::to_string(options.chunk_bytes), "give 1 byte or more");
  }
}

// Returns the type of the products. Autocast leaves float64 as it is.
at::ScalarType product_type(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool autocast) {
  const auto is_cast = [&](const at::Tensor& tensor) {
    return autocast && at::isFloatingType(tensor.scalar_type()) && tensor.scalar_type() != at::kDouble;
  };
  const auto type_of = [&](const at::Tensor& tensor) {
    return is_cast(tensor) ? at::autocast::get_autocast_dtype(input.device().type()) : tensor.scalar_type();
  };
  const at::ScalarType type = type_of(input);
  if (!at::isFloatingType(type) || type_of(weight) != type || (bias.defined() && type_of(bias) != type)) {
    refuse("the input is of type " + std::string(c10::toString(input.scalar_type())) + ", and the weight " +
               c10::toString(weight.scalar_type()) +
               (bias.defined() ? std::string(", and the bias ") + c10::toString(bias.scalar_type()) : ""),
           "give tensors of one floating-point type, or use autocast");
  }
  return type;
}

// True if the chunks may be computed here: the elements can be read, on one device.
bool has_elements(const at::Tensor& tensor, const at::Tensor& input) {
  return is_plain(tensor) && tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()) &&
         tensor.device() == input.device();
}

}  // namespace

bool is_summed_linear_cross_entropy(const torch::autograd::Node* node) {
  const auto* const ours = dynamic_cast<const torch::autograd::CppNode<LinearCrossEntropy>*>(node);
  return ours && ours->ctx_.saved_data.at("is_sum").toBool();
}

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options, const SeeScores& see) {
  check_shapes(input, linear_weight, target, options);
  const at::Tensor& bias = options.linear_bias;
  const Optional given_bias = bias.defined() ? Optional(bias) : std::nullopt;
  const at::Tensor rows = input.reshape({-1, input.size(-1)}), targets = target.reshape({-1});
  if (!has_elements(input, input) || !has_elements(linear_weight, input) || !has_elements(target, input) ||
      (bias.defined() && !has_elements(bias, input))) {
    const at::Tensor scores = at::linear(rows, linear_weight, given_bias);
    if (see) see(scores.detach(), targets);
    return at::cross_entropy_loss(scores, targets, {}, options.reduction, options.ignore_index,
                                  options.label_smoothing);
  }
  const bool autocast = at::autocast::is_autocast_enabled(input.device().type());
  const bool differentiated = at::GradMode::is_enabled();
  Settings settings;
  settings.is_sum = options.reduction == at::Reduction::Sum;
  settings.ignored = options.ignore_index;
  settings.smoothing = options.label_smoothing;
  settings.chunk_bytes = options.chunk_bytes;
  settings.product = product_type(input, linear_weight, bias, autocast);
  settings.loss = autocast ? settings.sums() : settings.product;
  settings.of_input = differentiated && input.requires_grad();
  settings.of_weight = differentiated && linear_weight.requires_grad();
  settings.of_bias = differentiated && bias.defined() && bias.requires_grad();
  settings.see = see;
  const c10::DeviceGuard on_device(input.device());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return LinearCrossEntropy::apply(rows, linear_weight, given_bias, targets, settings);
}

}  // namespace dtrain::train

namespace dtrain {

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  return train::linear_cross_entropy(input, linear_weight, target, options, {});
}

}  // namespace dtrain
