#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using Ints = std::vector<std::int64_t>;

// The limit counts pixels of all samples. With more pixels oneDNN's convolution is as fast as a product, or faster.
constexpr std::int64_t kMostPixels = 128;
constexpr std::int64_t kLeastWeights = 1 << 20;  // for smaller weights oneDNN's is as fast (bench_operators)
constexpr std::int64_t kMostColumns = 4;         // most elements of columns_of() per element of the weight

// The sizes for images [samples, channels, height, width] and a weight [outputs, channels, height, width].
struct Shape {
  Shape(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef strides, at::IntArrayRef paddings)
      : samples(x.size(0)),
        channels(x.size(1)),
        outputs(weight.size(0)),
        kernel{weight.size(2), weight.size(3)},
        stride{strides.front(), strides.back()},
        padding{paddings.front(), paddings.back()} {
    for (int i = 0; i < 2; ++i) {
      image[i] = x.size(2 + i);
      output[i] = (image[i] + 2 * padding[i] - kernel[i]) / stride[i] + 1;
    }
  }
  std::int64_t pixels() const { return samples * output[0] * output[1]; }

  std::int64_t samples, channels, outputs;
  std::int64_t kernel[2], stride[2], padding[2], image[2] = {}, output[2] = {};
};

// Returns a copy with the strides of the format, also in dimensions of size 1: later operators depend on these strides.
at::Tensor copied(const at::Tensor& images, at::ScalarType type, at::MemoryFormat format) {
  return at::empty(images.sizes(), images.options().dtype(type).memory_format(format)).copy_(images);
}

// Returns [outputs, weights of a pixel] in channels-last order, without a copy.
at::Tensor matrix_of(const at::Tensor& weight) {
  return weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1});
}

// Returns [pixels, weights of a pixel]: the inputs of each output pixel, in the order of matrix_of().
at::Tensor columns_of(const at::Tensor& x, const Shape& shape) {
  const auto [height, width] = shape.padding;
  const at::Tensor padded = height == 0 && width == 0 ? x : at::constant_pad_nd(x, {width, width, height, height});
  const at::Tensor seen =
      padded.unfold(2, shape.kernel[0], shape.stride[0]).unfold(3, shape.kernel[1], shape.stride[1]);
  return seen.permute({0, 2, 3, 4, 5, 1}).reshape({shape.pixels(), -1});
}

// Returns images as [pixels, channels].
at::Tensor rows_of(const at::Tensor& images) {
  return images.permute({0, 2, 3, 1}).reshape({-1, images.size(1)});
}

at::Tensor forward_of(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      const Shape& shape) {
  const at::Tensor columns = columns_of(x, shape), matrix = matrix_of(weight).t();
  const at::Tensor rows = bias && bias->defined() ? at::addmm(*bias, columns, matrix) : at::mm(columns, matrix);
  const at::Tensor images =
      rows.view({shape.samples, shape.output[0], shape.output[1], shape.outputs}).permute({0, 3, 1, 2});
  const bool channels_last = x.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                             weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  return channels_last ? images : copied(images, x.scalar_type(), at::MemoryFormat::Contiguous);
}

// Adds `of_columns`, in float32, at the pixels from which the columns came.
at::Tensor images_of(const at::Tensor& of_columns, const at::Tensor& x, const Shape& shape) {
  at::Tensor sums = at::zeros(
      {shape.samples, shape.image[0] + 2 * shape.padding[0], shape.image[1] + 2 * shape.padding[1], shape.channels},
      x.options().dtype(at::kFloat));
  const auto [height, width] = shape.kernel;
  const at::Tensor parts =
      of_columns.view({shape.samples, shape.output[0], shape.output[1], height, width, shape.channels});
  const auto end = [&](int dimension, std::int64_t begin) {
    return begin + shape.stride[dimension] * (shape.output[dimension] - 1) + 1;
  };
  for (std::int64_t i = 0; i < height; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      sums.slice(1, i, end(0, i), shape.stride[0])
          .slice(2, j, end(1, j), shape.stride[1])
          .add_(parts.select(3, i).select(3, j));
    }
  }
  const at::Tensor images =
      sums.narrow(1, shape.padding[0], shape.image[0]).narrow(2, shape.padding[1], shape.image[1]);
  return copied(images.permute({0, 3, 1, 2}), x.scalar_type(), x.suggest_memory_format());
}

// Takes the arguments of aten::convolution_backward. `wanted`: the gradients of x, weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& of_result, const at::Tensor& x,
                                                                    const at::Tensor& weight, at::OptionalIntArrayRef,
                                                                    at::IntArrayRef stride, at::IntArrayRef padding,
                                                                    at::IntArrayRef, bool, at::IntArrayRef,
                                                                    std::int64_t, std::array<bool, 3> wanted) {
  const Shape shape(x, weight, stride, padding);
  const at::Tensor rows = rows_of(of_result);
  at::Tensor of_x, of_weight, of_bias;
  if (wanted[0]) of_x = images_of(at::mm(rows, matrix_of(weight)), x, shape);
  if (wanted[1]) {
    const at::Tensor matrix = at::mm(rows.t(), columns_of(x, shape));
    of_weight =
        weight.is_contiguous()  // a weight of one pixel
            ? matrix.view(weight.sizes())
            : matrix.view({shape.outputs, shape.kernel[0], shape.kernel[1], shape.channels}).permute({0, 3, 1, 2});
  }
  if (wanted[2]) of_bias = rows.sum(0);
  return {of_x, of_weight, of_bias};
}

constexpr const char* kConvolutionBackward = "dtrain::convolution_backward";

class FewPixels : public torch::autograd::Function<FewPixels> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Ints& stride, const Ints& padding) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["has_bias"] = bias && bias->defined();
    return forward_of(x, weight, bias, Shape(x, weight, stride, padding));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &of_result = gradients[0];
    const Ints stride = context->saved_data["stride"].toIntVector(),
               padding = context->saved_data["padding"].toIntVector();
    const Ints ones{1, 1}, zeros{0, 0}, sizes{weight.size(0)};
    const std::array<bool, 3> wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                     context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)};
    const at::OptionalIntArrayRef of_bias = wanted[2] ? at::OptionalIntArrayRef(sizes) : std::nullopt;
    // With create_graph the gradient must be differentiable.
    const bool ours = !at::GradMode::is_enabled() && is_plain(of_result) && of_result.scalar_type() == x.scalar_type();
    const auto [of_x, of_weight, of_its_bias] =
        ours ? call_operator<decltype(convolution_backward)>(kConvolutionBackward, of_result, x, weight, of_bias,
                                                             at::IntArrayRef(stride), at::IntArrayRef(padding),
                                                             at::IntArrayRef(ones), false, at::IntArrayRef(zeros),
                                                             std::int64_t{1}, wanted)
             : at::convolution_backward(of_result, x, weight, of_bias, stride, padding, ones, false, zeros, 1, wanted);
    return {of_x, of_weight, of_its_bias, {}, {}};
  }
};

const LibtorchKernel* libtorchs_convolution = nullptr;

// True without a bias or if the bias has one value per output; libtorch refuses others.
bool is_of_outputs(const std::optional<at::Tensor>& bias, const at::Tensor& weight) {
  if (!bias || !bias->defined()) return true;
  return is_plain(*bias) && bias->scalar_type() == weight.scalar_type() && bias->dim() == 1 &&
         bias->size(0) == weight.size(0);
}

bool is_known(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
              c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
              const c10::SymInt& groups) {
  if (!is_plain(x) || !is_plain(weight) || x.dim() != 4 || weight.dim() != 4 || transposed) return false;
  const bool narrow = x.scalar_type() == at::kBFloat16;
  const bool alike = x.scalar_type() == weight.scalar_type() && (narrow || x.scalar_type() == at::kFloat);
  if (!alike || x.layout() != at::kStrided || weight.layout() != at::kStrided || x.numel() == 0) return false;
  if (!is_of_outputs(bias, weight)) return false;
  for (const c10::SymIntArrayRef list : {stride, padding, dilation}) {
    if (list.empty() || list.size() > 2) return false;
  }
  for (const c10::SymInt& extent : dilation) {
    if (extent != 1) return false;
  }
  if (groups != 1 || x.size(1) != weight.size(1) || weight.numel() < kLeastWeights) return false;
  if (!weight.is_contiguous(at::MemoryFormat::ChannelsLast)) return false;
  for (const c10::SymInt& step : stride) {
    if (step < 1) return false;  // libtorch refuses this stride
  }
  for (const c10::SymInt& extent : padding) {
    if (extent < 0) return false;
  }
  const Shape shape(x, weight, C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(padding));
  for (int i = 0; i < 2; ++i) {
    if (shape.image[i] + 2 * shape.padding[i] < shape.kernel[i]) return false;
  }
  return shape.pixels() <= std::min(kMostPixels, kMostColumns * shape.outputs);
}

at::Tensor convolution(c10::DispatchKeySet keys, const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                       c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
                       c10::SymInt groups) {
  if (is_known(x, weight, bias, stride, padding, dilation, transposed, groups)) {
    return FewPixels::apply(x, weight, bias, C10_AS_INTARRAYREF_SLOW(stride).vec(),
                            C10_AS_INTARRAYREF_SLOW(padding).vec());
  }
  return libtorchs_convolution
      ->call(keys, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
      .back()
      .toTensor();
}

}  // namespace

void add_convolution(torch::Library& own, torch::Library& aten) {
  libtorchs_convolution = new LibtorchKernel("aten::convolution");  // never freed
  own.def(
      "convolution_backward(Tensor of_result, Tensor x, Tensor weight, int[]? bias_sizes, int[] stride, int[] padding, "
      "int[] dilation, bool transposed, int[] output_padding, int groups, bool[3] wanted) -> (Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(convolution_backward)));
  aten.impl("convolution", TORCH_FN(convolution));
}

}  // namespace dtrain::train
