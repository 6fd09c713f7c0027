// Finds the class of an operator by its name. Names come in several spellings ("aten::log_softmax",
// "LogSoftmaxBackward0", a kernel's mangled name), so they are compared in lower case and without underscores.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "dtrain/analysis/operators.h"

namespace dtrain::analysis {
namespace {

// Names of operators; a '*' at the end stands for any rest.
constexpr std::array kContractions = {"mm",
                                      "addmm*",
                                      "bmm",
                                      "baddbmm",
                                      "addbmm",
                                      "matmul*",
                                      "linear*",
                                      "conv*",
                                      "mv",
                                      "addmv",
                                      "dot",
                                      "vdot",
                                      "inner",
                                      "einsum",
                                      "tensordot",
                                      "ger",
                                      "addr",
                                      "bilinear*",
                                      "slowconv*",
                                      "thnnconv*",
                                      "mkldnnconv*",
                                      "mkldnnlinear*",
                                      "cudnnconv*",
                                      "mkldnnrnn*",
                                      "lstm*",
                                      "gru*",
                                      "rnn*",
                                      "scaleddotproduct*",
                                      "flashattention*",
                                      "efficientattention*",
                                      "intmm",
                                      "scaledmm",
                                      "nativemultiheadattention*",
                                      "transformbiasrescaleqkv"};
constexpr std::array kNormalisations = {"softmax*",
                                        "logsoftmax*",
                                        "layernorm*",
                                        "nativelayernorm*",
                                        "batchnorm*",
                                        "nativebatchnorm*",
                                        "mkldnnbatchnorm*",
                                        "cudnnbatchnorm*",
                                        "groupnorm*",
                                        "nativegroupnorm*",
                                        "instancenorm*",
                                        "rmsnorm*",
                                        "fusedrmsnorm*",
                                        "localresponsenorm*",
                                        "norm",
                                        "linalgvectornorm*",
                                        "linalgnorm*",
                                        "normalize",
                                        "foreachnorm",
                                        "sum",
                                        "nansum",
                                        "mean",
                                        "var*",
                                        "std*",
                                        "logsumexp",
                                        "prod",
                                        "amax",
                                        "amin",
                                        "max",
                                        "min",
                                        "argmax",
                                        "argmin",
                                        "any",
                                        "all",
                                        "cumsum",
                                        "nllloss*",
                                        "crossentropyloss*",
                                        "mseloss*",
                                        "l1loss*",
                                        "smoothl1loss*",
                                        "huberloss*",
                                        "binarycrossentropy*",
                                        "kldiv*",
                                        "countnonzero"};
constexpr std::array kElementWise = {"add",
                                     "sub",
                                     "rsub",
                                     "mul",
                                     "div",
                                     "truedivide",
                                     "neg",
                                     "abs",
                                     "exp",
                                     "expm1",
                                     "log",
                                     "log1p",
                                     "log2",
                                     "sqrt",
                                     "rsqrt",
                                     "pow",
                                     "square",
                                     "reciprocal",
                                     "clamp*",
                                     "relu",
                                     "relu6",
                                     "leakyrelu*",
                                     "elu*",
                                     "celu*",
                                     "selu*",
                                     "gelu*",
                                     "silu*",
                                     "mish*",
                                     "sigmoid*",
                                     "logsigmoid*",
                                     "tanh*",
                                     "sin",
                                     "cos",
                                     "softplus*",
                                     "hardtanh*",
                                     "hardswish*",
                                     "hardsigmoid*",
                                     "threshold*",
                                     "dropout*",
                                     "nativedropout*",
                                     "alphadropout*",
                                     "bernoulli",
                                     "where",
                                     "lerp",
                                     "addcmul",
                                     "addcdiv",
                                     "maximum",
                                     "minimum",
                                     "eq",
                                     "ne",
                                     "lt",
                                     "le",
                                     "gt",
                                     "ge",
                                     "logicaland",
                                     "logicalor",
                                     "logicalnot",
                                     "bitwise*",
                                     "sign",
                                     "floor",
                                     "ceil",
                                     "round",
                                     "erf",
                                     "prelu*",
                                     "glu*",
                                     "fusedadam*",
                                     "fusedsgd*",
                                     "fusedadagrad*",
                                     "foreachadd*",
                                     "foreachmul*",
                                     "foreachdiv*",
                                     "foreachsqrt*",
                                     "foreachaddcmul*",
                                     "foreachaddcdiv*",
                                     "foreachlerp*",
                                     "amp*"};
// Parts of the names of GPU kernels, tried in this order.
constexpr std::array kContractionKernels = {"gemm", "gemv",  "conv",  "xmma", "cutlass",
                                            "fmha", "flash", "wgrad", "dgrad"};
constexpr std::array kNormalisationKernels = {"softmax", "norm", "reduce", "bnfw", "bnbw", "nllloss"};
constexpr std::array kElementWiseKernels = {"elementwise", "vectorized", "multitensorapply", "dropout", "relu"};

std::string plain(std::string_view name) {
  for (const std::string_view prefix : {"aten::", "torch::autograd::", "mkldnn::", "prims::"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  std::string text;
  for (const char c : name) {
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  // The backward of an operator has the class of the operator: "addmmbackward0", "log_softmax_backward_data".
  const auto backward = text.find("backward");
  if (backward != std::string::npos && backward > 0) text.resize(backward);
  return text;
}

template <std::size_t N>
bool among(const std::array<const char*, N>& names, std::string_view text) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    if (!name.ends_with('*')) return text == name;
    name.remove_suffix(1);
    return text.starts_with(name);
  });
}

template <std::size_t N>
bool mentioned(const std::array<const char*, N>& words, std::string_view text) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != std::string_view::npos; });
}

}  // namespace

std::string_view name_of(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kContraction:
      return "contraction";
    case OperatorKind::kNormalisation:
      return "normalisation";
    case OperatorKind::kElementWise:
      return "element-wise";
    case OperatorKind::kOther:
      break;
  }
  return "other";
}

OperatorKind kind_of_operator(std::string_view name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("autograd::engine")) {
    return OperatorKind::kOther;
  }
  const std::string text = plain(name);
  if (among(kContractions, text)) return OperatorKind::kContraction;
  if (among(kNormalisations, text)) return OperatorKind::kNormalisation;
  if (among(kElementWise, text)) return OperatorKind::kElementWise;
  if (name.starts_with("aten::") || name.starts_with("torch::") || name.find("Backward") != std::string_view::npos) {
    return OperatorKind::kOther;
  }
  if (mentioned(kContractionKernels, text)) return OperatorKind::kContraction;
  if (mentioned(kNormalisationKernels, text)) return OperatorKind::kNormalisation;
  if (mentioned(kElementWiseKernels, text)) return OperatorKind::kElementWise;
  return OperatorKind::kOther;
}

}  // namespace dtrain::analysis
