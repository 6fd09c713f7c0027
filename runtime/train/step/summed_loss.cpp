#include "step/summed_loss.h"

#include <ATen/core/Reduction.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::Node;

constexpr int kDeepest = 8;  // operations in a row that are looked through

// "NllLossBackward0" -> "NllLoss"
std::string operation(const Node& node) {
  const std::string name = node.name();
  return name.substr(0, name.find("Backward"));
}

template <class... Losses>
bool is_summed_one_of(const Node* node) {
  const auto is_summed = [](const auto* loss) { return loss && loss->reduction == at::Reduction::Sum; };
  return (is_summed(dynamic_cast<const Losses*>(node)) || ...);
}

const Node* input(const Node& node, std::size_t index) {
  return index < node.num_outputs() ? node.next_edge(index).function.get() : nullptr;
}

// True for a sum over several values, unless they are themselves the losses of a list.
template <class Sum>
bool sums_samples(const Node* node) {
  const auto* const sum = dynamic_cast<const Sum*>(node);
  if (!sum || c10::multiply_integers(sum->self_sym_sizes) == 1) return false;
  const Node* const summed = input(*node, 0);
  return !dynamic_cast<const generated::StackBackward0*>(summed) &&
         !dynamic_cast<const generated::CatBackward0*>(summed);
}

// True if the result is the first input but for its sign, type or shape.
bool passes_on(const Node* node) {
  return dynamic_cast<const generated::NegBackward0*>(node) || dynamic_cast<const generated::ToCopyBackward0*>(node) ||
         dynamic_cast<const generated::CloneBackward0*>(node) || dynamic_cast<const generated::ViewBackward0*>(node) ||
         dynamic_cast<const generated::SqueezeBackward0*>(node);
}

std::string sum_at(const Node* node, int depth) {
  if (!node || depth == kDeepest) return {};
  if (is_summed_one_of<generated::NllLossBackward0, generated::NllLoss2DBackward0, generated::MseLossBackward0,
                       generated::BinaryCrossEntropyBackward0, generated::BinaryCrossEntropyWithLogitsBackward0,
                       generated::SmoothL1LossBackward0, generated::HuberLossBackward0,
                       generated::SoftMarginLossBackward0, generated::MultiMarginLossBackward0,
                       generated::MultilabelMarginLossBackward0>(node)) {
    return operation(*node) + "(reduction=\"sum\")";
  }
  if (is_summed_cross_entropy(node)) return "CrossEntropyLoss(reduction=\"sum\")";
  if (sums_samples<generated::SumBackward0>(node) || sums_samples<generated::SumBackward1>(node)) return "sum()";
  if (passes_on(node)) return sum_at(input(*node, 0), depth + 1);
  if (!dynamic_cast<const generated::AddBackward0*>(node)) return {};
  // A penalty on weights is a sum that every rank computes alike, so only the losses of modules are looked for here.
  for (const std::size_t index : {0, 1}) {
    std::string found = sum_at(input(*node, index), depth + 1);
    if (found != "sum()" && !found.empty()) return found;
  }
  return {};
}

}  // namespace

std::string sum_over_samples(const at::Tensor& loss) {
  return sum_at(loss.grad_fn().get(), 0);
}

}  // namespace dtrain::train
