#include "step/checks.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include <ATen/core/Reduction.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include "dtrain/base/text.h"
#include "dtrain/rank/rank_session.h"
#include "model/flat_parameters.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kChunk = 256 * 1024;  // bytes of a listing, well under the control plane's message limit

void describe_tensor(std::ostream& out, const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  out << kind << " '" << name << "' " << at::toString(tensor.scalar_type()) << " [";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) out << (d ? ", " : "") << tensor.size(d);
  out << "]";
  if (!tensor.is_contiguous()) {
    // The stride of a dimension with one element means nothing.
    out << " with strides [";
    for (std::int64_t d = 0; d < tensor.dim(); ++d)
      out << (d ? ", " : "") << (tensor.size(d) > 1 ? tensor.stride(d) : 1);
    out << "]";
  }
  out << (kind == "parameter" && !tensor.requires_grad() ? " (frozen)" : "") << "\n";
}

// Lists one tensor a line, in registration order.
std::string listing(const torch::nn::Module& model) {
  std::ostringstream out;
  for (const auto& parameter : distinct_parameters(model)) {
    describe_tensor(out, "parameter", join(parameter.names, " = "), parameter.tensor);
  }
  for (const auto& item : model.named_buffers()) describe_tensor(out, "buffer", item.key(), item.value());
  return out.str();
}

std::string first_difference(const std::string& reference, const std::string& mine) {
  const auto theirs = split(reference, '\n');
  const auto ours = split(mine, '\n');
  for (std::size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
    const std::string a = i < theirs.size() ? theirs[i] : "";
    const std::string b = i < ours.size() ? ours[i] : "";
    if (a != b)
      return "has " + (b.empty() ? "nothing more" : b) + " where rank 0 has " + (a.empty() ? "nothing more" : a);
  }
  return {};
}

// Sends the values in logical order: each rank may lay out a tensor in memory in another order.
void broadcast_all(const std::vector<at::Tensor>& tensors, comm::Communicator& communicator) {
  const at::NoGradGuard no_grad;
  for (at::Tensor tensor : tensors) {
    if (tensor.numel() == 0) continue;
    at::Tensor values = tensor.detach().contiguous();
    communicator.broadcast(values.data_ptr(), values.nbytes(), comm::DataType::kUint8, 0).wait();
    if (values.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(values);
  }
}

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
  if (is_summed_linear_cross_entropy(node)) return "linear_cross_entropy(reduction=\"sum\")";
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

void compare_models(const torch::nn::Module& model, comm::ControlPlane& control) {
  if (control.world().size == 1) return;
  const std::string mine = listing(model);
  const std::string digest = std::to_string(mine.size()) + ":" + std::to_string(std::hash<std::string>{}(mine));
  const auto digests = control.gather("train/model-digest", digest);
  if (std::all_of(digests.begin(), digests.end(), [&](const std::string& d) { return d == digests[0]; })) return;

  if (control.world().rank == 0) {
    control.set("train/model-chunks", std::to_string((mine.size() + kChunk - 1) / kChunk));
    for (std::size_t i = 0; i * kChunk < mine.size(); ++i) {
      control.set("train/model-chunk-" + std::to_string(i), mine.substr(i * kChunk, kChunk));
    }
  }
  std::string reference;
  const int chunks = std::stoi(control.get("train/model-chunks"));
  for (int i = 0; i < chunks; ++i) reference += control.get("train/model-chunk-" + std::to_string(i));
  const auto differences = control.gather("train/model-differences", first_difference(reference, mine));
  std::string message = "the ranks built different models:";
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    if (!differences[rank].empty()) message += "\n  rank " + std::to_string(rank) + " " + differences[rank];
  }
  throw rank::AgreedError(message, "build the same model on every rank, whatever its number");
}

void broadcast_model(const torch::nn::Module& model, comm::Communicator& communicator) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : distinct_parameters(model)) tensors.push_back(parameter.tensor);
  broadcast_all(tensors, communicator);
  broadcast_buffers(model, communicator);
}

void broadcast_buffers(const torch::nn::Module& model, comm::Communicator& communicator) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : model.named_buffers()) tensors.push_back(item.value());
  broadcast_all(tensors, communicator);
}

std::string sum_over_samples(const at::Tensor& loss) {
  return sum_at(loss.grad_fn().get(), 0);
}

}  // namespace dtrain::train
