#include "dtrain/train/summed_metric.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/rank_session.h"
#include "loop/gather_rows.h"

namespace dtrain {

namespace {

std::string shape_text(at::IntArrayRef shape) {
  return Json(shape.vec()).dump();
}

// Rows of the tensor that a ClassMetric sums.
constexpr std::int64_t kRight = 0, kPredicted = 1, kActual = 2, kRows = 3;

}  // namespace

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

namespace train {

at::Tensor sum_over_ranks(run::RankSession& session, const std::string& name, std::int64_t batch,
                          const at::Tensor& own) {
  const at::NoGradGuard no_grad;
  const Json mine = own.defined() ? Json(own.sizes().vec()) : Json();
  const std::vector<std::string> texts =
      session.control().gather("train/summed/" + name + "/" + std::to_string(batch), mine.dump());
  Json shape;
  std::size_t first_rank = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json of_rank = Json::parse(texts[rank]);
    if (of_rank.is_null()) continue;
    if (shape.is_null()) {
      shape = of_rank;
      first_rank = rank;
    }
    if (of_rank == shape) continue;
    throw Error("the metric '" + name + "' has sums of shape " + of_rank.dump() + " on rank " + std::to_string(rank) +
                    ", and of " + shape.dump() + " on rank " + std::to_string(first_rank),
                "give it tensors of one shape on all ranks");
  }
  if (shape.is_null()) return {};
  const at::Tensor sums =
      own.defined() ? own.to(at::kCPU).contiguous() : at::zeros(shape.get<std::vector<std::int64_t>>(), at::kDouble);
  const auto count = static_cast<std::size_t>(sums.numel());
  if (count > 0) session.communicator().all_reduce(sums.data_ptr(), count, comm::DataType::kFloat64).wait();
  return sums;
}

}  // namespace train
}  // namespace dtrain
