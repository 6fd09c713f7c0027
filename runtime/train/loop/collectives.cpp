// The collective operations of TrialContext, and metrics that the ranks gather.
#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/gather_rows.h"

namespace dtrain {

namespace {

std::optional<comm::DataType> type_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return comm::DataType::kUint8;
    case at::kInt:
      return comm::DataType::kInt32;
    case at::kLong:
      return comm::DataType::kInt64;
    case at::kHalf:
      return comm::DataType::kFloat16;
    case at::kBFloat16:
      return comm::DataType::kBfloat16;
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kDouble:
      return comm::DataType::kFloat64;
    default:
      return std::nullopt;
  }
}

comm::ReduceOp operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return comm::ReduceOp::kMean;
    case Reduction::kSum:
      return comm::ReduceOp::kSum;
    case Reduction::kMin:
      return comm::ReduceOp::kMin;
    case Reduction::kMax:
      return comm::ReduceOp::kMax;
  }
  throw Error("unknown reduction " + std::to_string(static_cast<int>(reduction)));
}

// The parts of a tensor that a collective call needs.
struct Operand {
  at::Tensor values;  // contiguous, in memory of its own
  comm::DataType type;
  comm::Communicator& communicator;
  std::size_t count() const { return static_cast<std::size_t>(values.numel()); }
};

Operand operand(TrialContext& context, const char* function, const at::Tensor& tensor) {
  const std::string call = std::string("context.") + function + "()";
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
  run::RankSession& session = context.session();
  return {tensor.detach().clone(at::MemoryFormat::Contiguous), *type,
          tensor.is_cpu() ? session.communicator() : session.device_communicator()};
}

}  // namespace

at::Tensor TrialContext::all_reduce(const at::Tensor& tensor, Reduction reduction) {
  const at::NoGradGuard no_grad;
  const Operand given = operand(*this, "all_reduce", tensor);
  if (reduction == Reduction::kMean && !comm::is_floating(given.type)) {
    throw Error(std::string("context.all_reduce() was asked for the mean of ") + c10::toString(tensor.scalar_type()) +
                    " values",
                "convert the tensor to a floating type, or use Reduction::kSum");
  }
  given.communicator.all_reduce(given.values.data_ptr(), given.count(), given.type, {.op = operation_of(reduction)})
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

namespace train {

at::Tensor gather_rows(run::RankSession& session, const std::string& name, std::int64_t batch,
                       const std::vector<at::Tensor>& added) {
  const at::NoGradGuard no_grad;
  at::Tensor mine;
  Json form = {{"rows", 0}};
  if (!added.empty()) {
    for (const at::Tensor& rows : added) {
      const bool fits = rows.dim() > 0 && rows.scalar_type() == added.front().scalar_type() &&
                        rows.sizes().slice(1) == added.front().sizes().slice(1);
      if (!fits) {
        throw Error("the metric '" + name + "' was given rows of several forms",
                    "give add() tensors of one type whose first dimension counts the rows, and whose other dimensions "
                    "are equal");
      }
    }
    mine = at::cat(added).to(at::kCPU).contiguous();
    form = {{"rows", mine.size(0)},
            {"type", static_cast<int>(mine.scalar_type())},
            {"text",
             std::string(c10::toString(mine.scalar_type())) + " of shape " + Json(mine.sizes().slice(1).vec()).dump()},
            {"shape", mine.sizes().slice(1).vec()}};
  }
  const std::vector<std::string> texts =
      session.control().gather("train/gathered/" + name + "/" + std::to_string(batch), form.dump());
  std::vector<std::int64_t> counts;
  Json first;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json of_rank = Json::parse(texts[rank]);
    counts.push_back(of_rank["rows"].get<std::int64_t>());
    if (!of_rank.contains("type")) continue;
    if (first.is_null()) first = of_rank;
    if (of_rank["text"] == first["text"]) continue;
    throw Error("the metric '" + name + "' has rows of " + of_rank["text"].get<std::string>() + " on rank " +
                    std::to_string(rank) + ", and of " + first["text"].get<std::string>() + " on a rank before it",
                "give it rows of one form on all ranks");
  }
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  if (first.is_null() || most == 0) return {};
  std::vector<std::int64_t> shape = first["shape"].get<std::vector<std::int64_t>>();
  shape.insert(shape.begin(), most);
  const at::Tensor padded =
      at::zeros(shape, at::TensorOptions().dtype(static_cast<at::ScalarType>(first["type"].get<int>())));
  if (mine.defined()) padded.narrow(0, 0, mine.size(0)).copy_(mine);
  shape.insert(shape.begin(), static_cast<std::int64_t>(counts.size()));
  const at::Tensor all = at::empty(shape, padded.options());
  session.communicator().all_gather(padded.data_ptr(), all.data_ptr(), padded.nbytes(), comm::DataType::kUint8).wait();
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(all[static_cast<std::int64_t>(rank)].narrow(0, 0, counts[rank]));
  }
  return at::cat(parts);
}

}  // namespace train
}  // namespace dtrain
