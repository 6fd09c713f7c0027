// The collective operations of TrialContext, and the metrics of context.add_metric().
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/summed_metric.h"
#include "dtrain/train/trial.h"

namespace dtrain {
namespace {

constexpr std::pair<at::ScalarType, comm::DataType> kTypes[] = {
    {at::kByte, comm::DataType::kUint8},        {at::kInt, comm::DataType::kInt32},
    {at::kLong, comm::DataType::kInt64},        {at::kHalf, comm::DataType::kFloat16},
    {at::kBFloat16, comm::DataType::kBfloat16}, {at::kFloat, comm::DataType::kFloat32},
    {at::kDouble, comm::DataType::kFloat64}};

std::optional<comm::DataType> type_of(at::ScalarType type) {
  for (const auto& [known, to] : kTypes) {
    if (known == type) return to;
  }
  return std::nullopt;
}

// In the order of Reduction.
constexpr comm::ReduceOp kOperations[] = {comm::ReduceOp::kMean, comm::ReduceOp::kSum, comm::ReduceOp::kMin,
                                          comm::ReduceOp::kMax};

// The parts of a tensor that a collective call needs.
struct Operand {
  at::Tensor values;  // contiguous, in memory of its own
  comm::DataType type;
  comm::Communicator& communicator;
  std::size_t count() const { return static_cast<std::size_t>(values.numel()); }
};

Operand operand(TrialContext& context, const char* function, const at::Tensor& tensor) {
  const std::string call = std::string("context.") + function + "()";
  if (context.session().logical().virtuals) {
    throw ConfigError(call + " is not supported yet with reproducibility.virtual_ranks", "leave one of both out");
  }
  if (const std::string& why = context.around_the_loop().why_no_collective; !why.empty()) {
    throw Error(call + " cannot be called here because " + why,
                "call it in train_batch() before context.backward() or right after context.step(), or in a callback");
  }
  if (!tensor.defined()) throw Error(call + " was given a tensor without values");
  const auto type = type_of(tensor.scalar_type());
  if (!type) {
    throw Error(call + " was given a tensor of type " + c10::toString(tensor.scalar_type()),
                "convert it to uint8, int32, int64, float16, bfloat16, float32 or float64");
  }
  if (tensor.layout() != at::kStrided) throw Error(call + " was given a sparse tensor", "give it tensor.to_dense()");
  if (!tensor.is_cpu() && tensor.device() != context.device()) {
    throw Error(
        call + " was given a tensor on " + tensor.device().str() + "; this rank trains on " + context.device().str(),
        "move it to context.device() or to the CPU");
  }
  rank::RankSession& session = context.session();
  return {tensor.detach().clone(at::MemoryFormat::Contiguous), *type,
          tensor.is_cpu() ? session.communicator() : session.device_communicator()};
}

std::string shape_text(at::IntArrayRef shape) {
  return Json(shape.vec()).dump();
}

// Rows of the tensor that a ClassMetric sums.
constexpr std::int64_t kRight = 0, kPredicted = 1, kActual = 2, kRows = 3;

}  // namespace

at::Tensor TrialContext::all_reduce(const at::Tensor& tensor, Reduction reduction) {
  const at::NoGradGuard no_grad;
  const Operand given = operand(*this, "all_reduce", tensor);
  if (reduction == Reduction::kMean && !comm::is_floating(given.type)) {
    throw Error(std::string("context.all_reduce() was asked for the mean of ") + c10::toString(tensor.scalar_type()) +
                    " values",
                "convert the tensor to a floating type, or use Reduction::kSum");
  }
  given.communicator
      .all_reduce(given.values.data_ptr(), given.count(), given.type,
                  {.op = kOperations[static_cast<std::size_t>(reduction)]})
      .wait();
  return given.values;
}

std::vector<at::Tensor> TrialContext::all_gather(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const Operand given = operand(*this, "all_gather", tensor);
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), world_size());
  const at::Tensor all = at::empty(shape, given.values.options());
  given.communicator.all_gather(given.values.data_ptr(), all.data_ptr(), given.count(), given.type).wait();
  return all.unbind(0);
}

at::Tensor TrialContext::broadcast(const at::Tensor& tensor, int root) {
  const at::NoGradGuard no_grad;
  if (root < 0 || root >= world_size()) {
    throw Error("context.broadcast() was given the root " + std::to_string(root),
                "give a rank from 0 to " + std::to_string(world_size() - 1));
  }
  const Operand given = operand(*this, "broadcast", tensor);
  given.communicator.broadcast(given.values.data_ptr(), given.count(), given.type, root).wait();
  return given.values;
}

void Auc::add(const at::Tensor& scores, const at::Tensor& labels) {
  GatheredMetric::add(
      at::stack({scores.detach().reshape({-1}).to(at::kDouble), labels.detach().reshape({-1}).to(at::kDouble)}, 1));
}

double Auc::compute(const at::Tensor& rows) {
  const at::Tensor sorted = rows.index_select(0, rows.select(1, 0).contiguous().argsort()).contiguous();
  const auto row = sorted.accessor<double, 2>();
  double positives = 0;
  double negatives = 0;
  double pairs = 0;  // pairs with the higher score for the positive sample; ties count one half
  for (std::int64_t begin = 0; begin < row.size(0);) {
    std::int64_t end = begin;
    double tied_positives = 0;
    for (; end < row.size(0) && row[end][0] == row[begin][0]; ++end) tied_positives += row[end][1] > 0.5 ? 1 : 0;
    if (end == begin) return std::numeric_limits<double>::quiet_NaN();  // a score is nan
    const double tied_negatives = static_cast<double>(end - begin) - tied_positives;
    pairs += tied_positives * (negatives + tied_negatives / 2);
    positives += tied_positives;
    negatives += tied_negatives;
    begin = end;
  }
  return pairs / (positives * negatives);
}

void SummedMetric::add(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  if (!sum_.defined()) {
    sum_ = values.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  if (values.sizes() != sum_.sizes()) {
    throw Error("a SummedMetric was given a tensor of shape " + shape_text(values.sizes()) + " after one of shape " +
                    shape_text(sum_.sizes()),
                "give add() tensors of one shape");
  }
  sum_.add_(values);
}

void ClassMetric::add_classes(const at::Tensor& predicted, const at::Tensor& target, std::int64_t classes,
                              const at::Tensor& counted) {
  const at::NoGradGuard no_grad;
  const auto numbers = [&](const at::Tensor& of) { return of.flatten().to(at::kLong).clamp(0, classes - 1); };
  const at::Tensor guess = numbers(predicted);
  const at::Tensor actual = numbers(target);
  const auto options = guess.options().dtype(at::kDouble);
  const at::Tensor weights = counted.defined() ? counted.flatten().to(at::kDouble) : at::ones(guess.sizes(), options);
  const at::Tensor counts = at::zeros({kRows, classes}, options);
  counts.select(0, kRight).scatter_add_(0, actual, weights * guess.eq(actual));
  counts.select(0, kPredicted).scatter_add_(0, guess, weights);
  counts.select(0, kActual).scatter_add_(0, actual, weights);
  add(counts);
}

void ClassMetric::add_labels(const at::Tensor& predicted, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const at::Tensor guess = predicted.to(at::kBool);
  const at::Tensor actual = target.to(at::kBool);
  add(at::stack({guess.logical_and(actual).sum(0), guess.sum(0), actual.sum(0)}));
}

double ClassMetric::compute(const at::Tensor& sums) {
  return of_each(sums[kRight], sums[kPredicted], sums[kActual]).nanmean().item<double>();
}

at::Tensor F1::of_each(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const {
  return 2 * right / (predicted + actual);
}

at::Tensor MeanIou::of_each(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const {
  return right / (predicted + actual - right);
}

}  // namespace dtrain
